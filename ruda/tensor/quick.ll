; Recording an op, looking at what waits and reading small work, as builtins of CPython. `quick.py`
; explains them, names the same in Python, and fills in the offsets of the objects' fields.

@node_type = global ptr null
@storage_type = global ptr null
@tensor_type = global ptr null
@float_type = global ptr null
@int_type = global ptr null
@none = global ptr null
@false = global ptr null
@zero = global ptr null
@nothing = global ptr null              ; the empty tuple
@array_type = global ptr null
@new_array = global ptr null            ; NumPy's PyArray_NewFromDescr and PyArray_View
@view_array = global ptr null
@single = global ptr null               ; float32
@double = global ptr null               ; float64
@small = global ptr null                ; the set of shapes that are
@singles = global ptr null              ; what computes rows of float32, and of float64
@doubles = global ptr null
@cpu_name = global ptr null
@settings = global ptr null             ; `settings`, its variable, and what is asked of it
@local = global ptr null
@base_name = global ptr null
@fusion_name = global ptr null
@verify_name = global ptr null
@acquire = global ptr null              ; of the lock of those who compute
@release = global ptr null
@by_python = global ptr null            ; what reads all else
@array_by_python = global ptr null      ; and gives it to NumPy
@ops = global ptr null                  ; `execute._alone`
@last = internal global [64 x [5 x ptr]] zeroinitializer
@true = global ptr null
@tracing = global ptr null              ; `graph.tracing`, and its variable
@current_name = global ptr null
@buffer_by_python = global ptr null

declare ptr @PyType_GenericAlloc(ptr, i64)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)            ; null is fine
declare ptr @PyTuple_Pack(i64, ...)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyDict_GetItem(ptr, ptr)
declare ptr @PyDict_SetDefault(ptr, ptr, ptr)
declare ptr @PyLong_FromLong(i64)
declare i64 @PyLong_AsLong(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i32 @PySet_Contains(ptr, ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare i64 @PyBytes_Size(ptr)
declare i32 @PyErr_BadArgument()

define internal ptr @get(ptr %object, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  %value = load ptr, ptr %at
  ret ptr %value
}

; A field of a new object; `give` is for values that nobody else will let go of.
define internal void @give(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  store ptr %value, ptr %at
  ret void
}
define internal void @put(ptr %object, i64 %offset, ptr %value) alwaysinline {
  call void @Py_IncRef(ptr %value)
  call void @give(ptr %object, i64 %offset, ptr %value)
  ret void
}

; The tensor of a recorded op, with its storage and node.
define internal ptr @made(ptr %row, ptr %inputs, ptr %shape, ptr %dtype, ptr %device, ptr %depth) {
entry:
  %node_type = load ptr, ptr @node_type
  %storage_type = load ptr, ptr @storage_type
  %tensor_type = load ptr, ptr @tensor_type
  %none = load ptr, ptr @none
  %false = load ptr, ptr @false
  %zero = load ptr, ptr @zero
  %nothing = load ptr, ptr @nothing
  %node = call ptr @PyType_GenericAlloc(ptr %node_type, i64 0)
  %no_node = icmp eq ptr %node, null
  br i1 %no_node, label %failed, label %store
store:
  %storage = call ptr @PyType_GenericAlloc(ptr %storage_type, i64 0)
  %no_storage = icmp eq ptr %storage, null
  br i1 %no_storage, label %failed, label %handle
handle:
  %tensor = call ptr @PyType_GenericAlloc(ptr %tensor_type, i64 0)
  %no_tensor = icmp eq ptr %tensor, null
  br i1 %no_tensor, label %failed, label %fill
fill:
  call void @put(ptr %node, i64 ${NODE_ROW}, ptr %row)
  call void @put(ptr %node, i64 ${NODE_INPUTS}, ptr %inputs)
  call void @put(ptr %node, i64 ${NODE_AXES}, ptr %nothing)
  call void @put(ptr %node, i64 ${NODE_SHAPE}, ptr %shape)
  call void @put(ptr %node, i64 ${NODE_DTYPE}, ptr %dtype)
  call void @put(ptr %node, i64 ${NODE_DEVICE}, ptr %device)
  call void @put(ptr %node, i64 ${NODE_VALUE}, ptr %none)
  call void @put(ptr %node, i64 ${NODE_LAYOUT}, ptr %none)
  call void @put(ptr %node, i64 ${NODE_EXPORTED}, ptr %false)
  call void @put(ptr %node, i64 ${NODE_DEPTH}, ptr %depth)
  call void @give(ptr %storage, i64 ${STORAGE_NODE}, ptr %node)
  call void @put(ptr %storage, i64 ${STORAGE_VERSION}, ptr %zero)
  call void @give(ptr %tensor, i64 ${TENSOR__STORAGE}, ptr %storage)
  call void @put(ptr %tensor, i64 ${TENSOR__VIEW}, ptr %none)
  call void @put(ptr %tensor, i64 ${TENSOR__HISTORY}, ptr %none)
  call void @put(ptr %tensor, i64 ${TENSOR_GRAD}, ptr %none)
  call void @put(ptr %tensor, i64 ${TENSOR_SHAPE}, ptr %shape)
  call void @put(ptr %tensor, i64 ${TENSOR_DTYPE}, ptr %dtype)
  call void @put(ptr %tensor, i64 ${TENSOR_DEVICE}, ptr %device)
  ret ptr %tensor
failed:
  %unused = phi ptr [null, %entry], [null, %store], [%storage, %handle]
  call void @Py_DecRef(ptr %unused)
  call void @Py_DecRef(ptr %node)
  ret ptr null
}

define ptr @fresh(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 6
  br i1 %good, label %make, label %wrong
make:
  %row = call ptr @get(ptr %given, i64 0)
  %inputs = call ptr @get(ptr %given, i64 8)
  %shape = call ptr @get(ptr %given, i64 16)
  %dtype = call ptr @get(ptr %given, i64 24)
  %device = call ptr @get(ptr %given, i64 32)
  %depth = call ptr @get(ptr %given, i64 40)
  %tensor = call ptr @made(ptr %row, ptr %inputs, ptr %shape, ptr %dtype, ptr %device, ptr %depth)
  ret ptr %tensor
wrong:
  %error = call i32 @PyErr_BadArgument()
  ret ptr null
}

define internal i1 @equal(ptr %a, ptr %b) {
entry:
  %same = icmp eq ptr %a, %b
  br i1 %same, label %yes, label %look
look:
  %answer = call i32 @PyObject_RichCompareBool(ptr %a, ptr %b, i32 2)
  %alike = icmp eq i32 %answer, 1
  br i1 %alike, label %yes, label %no
yes:
  ret i1 true
no:
  call void @PyErr_Clear()
  ret i1 false
}

; A whole tensor without a history.
define internal i1 @is_plain(ptr %tensor) alwaysinline {
  %none = load ptr, ptr @none
  %view = call ptr @get(ptr %tensor, i64 ${TENSOR__VIEW})
  %history = call ptr @get(ptr %tensor, i64 ${TENSOR__HISTORY})
  %whole = icmp eq ptr %view, %none
  %alone = icmp eq ptr %history, %none
  %plain = and i1 %whole, %alone
  ret i1 %plain
}

define ptr @record(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 5
  br i1 %good, label %first, label %wrong
first:
  %row = call ptr @get(ptr %given, i64 0)
  %known = call ptr @get(ptr %given, i64 8)
  %numbers = call ptr @get(ptr %given, i64 16)
  %x = call ptr @get(ptr %given, i64 24)
  %y = call ptr @get(ptr %given, i64 32)
  %x_plain = call i1 @is_plain(ptr %x)
  br i1 %x_plain, label %kinds, label %no
kinds:
  %kind = call ptr @get(ptr %x, i64 ${TENSOR_DTYPE})
  %result = call ptr @PyDict_GetItem(ptr %known, ptr %kind)
  %unknown = icmp eq ptr %result, null
  br i1 %unknown, label %no, label %second
second:
  %x_storage = call ptr @get(ptr %x, i64 ${TENSOR__STORAGE})
  %x_node = call ptr @get(ptr %x_storage, i64 ${STORAGE_NODE})
  %shape = call ptr @get(ptr %x_node, i64 ${NODE_SHAPE})
  %device = call ptr @get(ptr %x_node, i64 ${NODE_DEVICE})
  %x_depth_object = call ptr @get(ptr %x_node, i64 ${NODE_DEPTH})
  %x_depth = call i64 @PyLong_AsLong(ptr %x_depth_object)
  %y_type = call ptr @get(ptr %y, i64 8)
  %tensor_type = load ptr, ptr @tensor_type
  %is_tensor = icmp eq ptr %y_type, %tensor_type
  br i1 %is_tensor, label %tensor, label %number
number:
  %some = call i64 @PyTuple_Size(ptr %numbers)
  %takes = icmp sgt i64 %some, 0
  %float_type = load ptr, ptr @float_type
  %int_type = load ptr, ptr @int_type
  %is_float = icmp eq ptr %y_type, %float_type
  %is_int = icmp eq ptr %y_type, %int_type
  %is_number = or i1 %is_float, %is_int
  %fits = and i1 %takes, %is_number
  br i1 %fits, label %together, label %no
tensor:
  %y_plain = call i1 @is_plain(ptr %y)
  %y_kind = call ptr @get(ptr %y, i64 ${TENSOR_DTYPE})
  %same_kind = icmp eq ptr %kind, %y_kind
  %similar = and i1 %y_plain, %same_kind
  br i1 %similar, label %shapes, label %no
shapes:
  %y_storage = call ptr @get(ptr %y, i64 ${TENSOR__STORAGE})
  %y_node = call ptr @get(ptr %y_storage, i64 ${STORAGE_NODE})
  %y_shape = call ptr @get(ptr %y_node, i64 ${NODE_SHAPE})
  %y_device = call ptr @get(ptr %y_node, i64 ${NODE_DEVICE})
  %y_depth_object = call ptr @get(ptr %y_node, i64 ${NODE_DEPTH})
  %y_depth = call i64 @PyLong_AsLong(ptr %y_depth_object)
  %x_form = call ptr @get(ptr %x_node, i64 ${NODE_FORM})
  %y_form = call ptr @get(ptr %y_node, i64 ${NODE_FORM})
  %same_form = icmp eq ptr %x_form, %y_form
  %has_form = icmp ne ptr %x_form, null
  %known_alike = and i1 %same_form, %has_form
  br i1 %known_alike, label %together, label %compare
compare:
  %same_shape = call i1 @equal(ptr %shape, ptr %y_shape)
  %same_device = call i1 @equal(ptr %device, ptr %y_device)
  %alike = and i1 %same_shape, %same_device
  br i1 %alike, label %together, label %no
together:
  %other = phi ptr [%y, %number], [%y_node, %shapes], [%y_node, %compare]
  %its_depth = phi i64 [0, %number], [%y_depth, %shapes], [%y_depth, %compare]
  %deeper = icmp sgt i64 %its_depth, %x_depth
  %depth = select i1 %deeper, i64 %its_depth, i64 %x_depth
  %short = icmp slt i64 %depth, ${MAX_DEPTH}
  br i1 %short, label %make, label %no
make:                                   ; the garbage collector may run whenever a tuple is made
  call void @Py_IncRef(ptr %x_node)
  call void @Py_IncRef(ptr %other)
  %inputs = call ptr (i64, ...) @PyTuple_Pack(i64 2, ptr %x_node, ptr %other)
  call void @Py_DecRef(ptr %other)
  %failed = icmp eq ptr %inputs, null
  br i1 %failed, label %out, label %number_depth
number_depth:
  %next = add i64 %depth, 1
  %next_object = call ptr @PyLong_FromLong(i64 %next)
  %no_object = icmp eq ptr %next_object, null
  br i1 %no_object, label %drop, label %finish
finish:
  %new = call ptr @made(ptr %row, ptr %inputs, ptr %shape, ptr %result, ptr %device,
                        ptr %next_object)
  call void @Py_DecRef(ptr %next_object)
  br label %drop
drop:
  %found = phi ptr [null, %number_depth], [%new, %finish]
  call void @Py_DecRef(ptr %inputs)
  br label %out
out:
  %tensor_or_null = phi ptr [null, %make], [%found, %drop]
  call void @Py_DecRef(ptr %x_node)
  ret ptr %tensor_or_null
no:
  %none = load ptr, ptr @none
  call void @Py_IncRef(ptr %none)
  ret ptr %none
wrong:
  %error = call i32 @PyErr_BadArgument()
  ret ptr null
}

define ptr @gather(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 6
  br i1 %good, label %begin, label %wrong
begin:
  %argument = alloca ptr
  %nodes = call ptr @get(ptr %given, i64 0)
  %numbered = call ptr @get(ptr %given, i64 8)
  %leaves = call ptr @get(ptr %given, i64 16)
  %numbers = call ptr @get(ptr %given, i64 24)
  %key = call ptr @get(ptr %given, i64 32)
  %form_of = call ptr @get(ptr %given, i64 40)
  %node_type = load ptr, ptr @node_type
  %none = load ptr, ptr @none
  %nothing = load ptr, ptr @nothing
  %first = call i64 @PyList_Size(ptr %nodes)
  br label %each
each:
  %i = phi i64 [0, %begin], [%i_next, %node_done]
  %seen = phi i64 [%first, %begin], [%seen_of_node, %node_done]
  %size = call i64 @PyList_Size(ptr %nodes)
  %more = icmp slt i64 %i, %size
  br i1 %more, label %node, label %done
node:
  %n = call ptr @PyList_GetItem(ptr %nodes, i64 %i)
  %row = call ptr @get(ptr %n, i64 ${NODE_ROW})
  %told_row = call i32 @PyList_Append(ptr %key, ptr %row)
  %axes = call ptr @get(ptr %n, i64 ${NODE_AXES})
  %inputs = call ptr @get(ptr %n, i64 ${NODE_INPUTS})
  call void @Py_IncRef(ptr %inputs)     ; `form_of` may run the collector, and that what computes
  %width = call i64 @PyTuple_Size(ptr %inputs)
  %elementwise = icmp eq ptr %axes, %nothing
  br i1 %elementwise, label %inputs_of, label %axes_of
axes_of:
  %shape = call ptr @get(ptr %n, i64 ${NODE_SHAPE})
  %told_axes = call i32 @PyList_Append(ptr %key, ptr %axes)
  %told_shape = call i32 @PyList_Append(ptr %key, ptr %shape)
  br label %inputs_of
inputs_of:
  %j = phi i64 [0, %node], [0, %axes_of], [%j_next, %input_done]
  %seen_of_node = phi i64 [%seen, %node], [%seen, %axes_of], [%seen_next, %input_done]
  %j_more = icmp slt i64 %j, %width
  br i1 %j_more, label %input, label %node_done
input:
  %x = call ptr @PyTuple_GetItem(ptr %inputs, i64 %j)
  %type = call ptr @get(ptr %x, i64 8)
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %known, label %plain_number
plain_number:
  %told_type = call i32 @PyList_Append(ptr %key, ptr %type)
  %kept_number = call i32 @PyList_Append(ptr %numbers, ptr %x)
  br label %input_done
known:
  %own = call ptr @PyLong_FromLong(i64 %seen_of_node)
  %no_own = icmp eq ptr %own, null
  br i1 %no_own, label %leave, label %look_up
look_up:
  %place = call ptr @PyDict_SetDefault(ptr %numbered, ptr %x, ptr %own)
  %no_place = icmp eq ptr %place, null
  br i1 %no_place, label %drop, label %tell
drop:
  call void @Py_DecRef(ptr %own)
  br label %leave
tell:                                   ; the numbers given before are less: never this object
  %told_place = call i32 @PyList_Append(ptr %key, ptr %place)
  %is_new = icmp eq ptr %place, %own
  call void @Py_DecRef(ptr %own)
  br i1 %is_new, label %new, label %input_done
new:
  %seen_more = add i64 %seen_of_node, 1
  %value = call ptr @get(ptr %x, i64 ${NODE_VALUE})
  %waits = icmp eq ptr %value, %none
  br i1 %waits, label %waiting, label %leaf
waiting:
  %kept_node = call i32 @PyList_Append(ptr %nodes, ptr %x)
  br label %input_done
leaf:
  %kept_leaf = call i32 @PyList_Append(ptr %leaves, ptr %x)
  %form = call ptr @get(ptr %x, i64 ${NODE_FORM})
  %unset = icmp eq ptr %form, null
  br i1 %unset, label %ask, label %tell_form
tell_form:
  %told_form = call i32 @PyList_Append(ptr %key, ptr %form)
  br label %input_done
ask:
  store ptr %x, ptr %argument
  %answer = call ptr @PyObject_Vectorcall(ptr %form_of, ptr %argument, i64 1, ptr null)
  %no_answer = icmp eq ptr %answer, null
  br i1 %no_answer, label %leave, label %tell_answer
tell_answer:
  %told_answer = call i32 @PyList_Append(ptr %key, ptr %answer)
  call void @Py_DecRef(ptr %answer)
  br label %input_done
input_done:
  %seen_next = phi i64 [%seen_of_node, %plain_number], [%seen_of_node, %tell],
                       [%seen_more, %waiting], [%seen_more, %tell_form],
                       [%seen_more, %tell_answer]
  %j_next = add i64 %j, 1
  br label %inputs_of
node_done:
  call void @Py_DecRef(ptr %inputs)
  %i_next = add i64 %i, 1
  br label %each
leave:
  call void @Py_DecRef(ptr %inputs)
  br label %raised
done:                                   ; a list that could not grow has raised
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %return, label %raised
return:
  %total = call ptr @PyLong_FromLong(i64 %seen)
  ret ptr %total
raised:
  ret ptr null
wrong:
  %bad = call i32 @PyErr_BadArgument()
  ret ptr null
}

; `program.above`: a byte for each node that has more references than is known of. A count has 32
; bits at least, the low ones first.
define ptr @above(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 2
  br i1 %good, label %sizes, label %wrong
sizes:
  %nodes = call ptr @get(ptr %given, i64 0)
  %known = call ptr @get(ptr %given, i64 8)
  %size = call i64 @PyList_Size(ptr %nodes)
  %bytes = call i64 @PyBytes_Size(ptr %known)
  %needed = mul i64 %size, 8
  %enough = icmp eq i64 %bytes, %needed
  %is_list = icmp sge i64 %size, 0
  %fits = and i1 %enough, %is_list
  br i1 %fits, label %make, label %wrong
make:
  %counts = call ptr @PyBytes_AsString(ptr %known)
  %found = call ptr @PyBytes_FromStringAndSize(ptr null, i64 %size)
  %none = icmp eq ptr %found, null
  br i1 %none, label %out, label %fill
fill:
  %to = call ptr @PyBytes_AsString(ptr %found)
  br label %each
each:
  %i = phi i64 [0, %fill], [%next, %one]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %one, label %out
one:
  %node = call ptr @PyList_GetItem(ptr %nodes, i64 %i)
  %references = load i32, ptr %node
  %held = zext i32 %references to i64
  %seen = add i64 %held, ${OWN_MORE}    ; as many as Python sees
  %count_at = getelementptr i64, ptr %counts, i64 %i
  %least = load i64, ptr %count_at
  %is_above = icmp sgt i64 %seen, %least
  %byte = zext i1 %is_above to i8
  %to_at = getelementptr i8, ptr %to, i64 %i
  store i8 %byte, ptr %to_at
  %next = add i64 %i, 1
  br label %each
out:
  ret ptr %found
wrong:
  %error = call i32 @PyErr_BadArgument()
  ret ptr null
}

; ---- reading -----------------------------------------------------------------------------------

; Another object in a field.
define internal void @replace(ptr %object, i64 %offset, ptr %value) alwaysinline {
  %old = call ptr @get(ptr %object, i64 %offset)
  call void @put(ptr %object, i64 %offset, ptr %value)
  call void @Py_DecRef(ptr %old)
  ret void
}

; A node's value, there or computed: a new reference. Null without an error: not here.
define internal ptr @value_of(ptr %node) {
entry:
  %none = load ptr, ptr @none
  %value = call ptr @get(ptr %node, i64 ${NODE_VALUE})
  %waits = icmp eq ptr %value, %none
  br i1 %waits, label %compute, label %there
there:
  call void @Py_IncRef(ptr %value)
  ret ptr %value
compute:
  %made = call ptr @compute(ptr %node)
  ret ptr %made
}

; The value of an input that is a node of this dtype and shape, in C order; else null.
define internal ptr @alike(ptr %node, ptr %dtype, ptr %shape) {
entry:
  %none = load ptr, ptr @none
  %node_type = load ptr, ptr @node_type
  %type = call ptr @get(ptr %node, i64 8)
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %look, label %no
look:
  %kind = call ptr @get(ptr %node, i64 ${NODE_DTYPE})
  %own = call ptr @get(ptr %node, i64 ${NODE_SHAPE})
  %same_kind = icmp eq ptr %kind, %dtype
  %same_shape = call i1 @equal(ptr %own, ptr %shape)
  %similar = and i1 %same_kind, %same_shape
  br i1 %similar, label %value, label %no
value:
  %found = call ptr @value_of(ptr %node)
  %not_here = icmp eq ptr %found, null
  br i1 %not_here, label %no, label %looks
looks:
  %layout = call ptr @get(ptr %node, i64 ${NODE_LAYOUT})
  %in_order = icmp eq ptr %layout, %none
  %kind_of = call ptr @get(ptr %found, i64 8)
  %array_type = load ptr, ptr @array_type
  %is_array = icmp eq ptr %kind_of, %array_type
  %usable = and i1 %in_order, %is_array
  br i1 %usable, label %out, label %drop
out:
  ret ptr %found
drop:
  call void @Py_DecRef(ptr %found)
  br label %no
no:
  ret ptr null
}

; The number of elements of an array.
define internal i64 @size_of(ptr %array) {
entry:
  %ndim_at = getelementptr i8, ptr %array, i64 ${ARRAY_NDIM}
  %ndim = load i32, ptr %ndim_at
  %extents = call ptr @get(ptr %array, i64 ${ARRAY_EXTENTS})
  br label %axes
axes:
  %axis = phi i32 [0, %entry], [%next, %axis_of]
  %size = phi i64 [1, %entry], [%larger, %axis_of]
  %more = icmp slt i32 %axis, %ndim
  br i1 %more, label %axis_of, label %out
axis_of:
  %extent_at = getelementptr i64, ptr %extents, i32 %axis
  %extent = load i64, ptr %extent_at
  %larger = mul i64 %size, %extent
  %next = add i32 %axis, 1
  br label %axes
out:
  ret i64 %size
}

; Compute a node of one or two such inputs, or of one and a number: what `evaluate` does, but for
; all that does not fit at once. NumPy's loop for the row runs over the elements, without the ufunc
; around it: nothing warns, so that nobody must be told not to.
define internal ptr @compute(ptr %node) {
entry:
  %data = alloca [3 x ptr]
  %steps = alloca [3 x i64]
  %length = alloca i64
  %double_at = alloca double
  %single_at = alloca float
  %shape = call ptr @get(ptr %node, i64 ${NODE_SHAPE})
  %small = load ptr, ptr @small
  %known = call i32 @PySet_Contains(ptr %small, ptr %shape)
  %is_small = icmp eq i32 %known, 1
  %inputs = call ptr @get(ptr %node, i64 ${NODE_INPUTS})
  call void @Py_IncRef(ptr %inputs)
  %count = call i64 @PyTuple_Size(ptr %inputs)
  %one = icmp eq i64 %count, 1
  %two = icmp eq i64 %count, 2
  %one_or_two = or i1 %one, %two
  %go = and i1 %is_small, %one_or_two
  br i1 %go, label %first, label %give_up
first:
  %x = call ptr @PyTuple_GetItem(ptr %inputs, i64 0)
  %node_type = load ptr, ptr @node_type
  %x_type = call ptr @get(ptr %x, i64 8)
  %x_is_node = icmp eq ptr %x_type, %node_type
  br i1 %x_is_node, label %kind, label %give_up
kind:
  %dtype = call ptr @get(ptr %x, i64 ${NODE_DTYPE})
  %single = load ptr, ptr @single
  %double = load ptr, ptr @double
  %is_single = icmp eq ptr %dtype, %single
  %is_double = icmp eq ptr %dtype, %double
  %is_float = or i1 %is_single, %is_double
  br i1 %is_float, label %function, label %give_up
function:
  %singles = load ptr, ptr @singles
  %doubles = load ptr, ptr @doubles
  %rows = select i1 %is_single, ptr %singles, ptr %doubles
  %itemsize = select i1 %is_single, i64 4, i64 8
  %row = call ptr @get(ptr %node, i64 ${NODE_ROW})
  %bytes = call ptr @PyDict_GetItem(ptr %rows, ptr %row)
  %no_loop = icmp eq ptr %bytes, null
  br i1 %no_loop, label %give_up, label %left
left:
  %words = call ptr @PyBytes_AsString(ptr %bytes)
  %x_value = call ptr @alike(ptr %x, ptr %dtype, ptr %shape)
  %no_left = icmp eq ptr %x_value, null
  br i1 %no_left, label %give_up, label %more
more:
  %x_data = call ptr @get(ptr %x_value, i64 ${ARRAY_DATA})
  store ptr %x_data, ptr %data
  store i64 %itemsize, ptr %steps
  %second_data = getelementptr [3 x ptr], ptr %data, i64 0, i64 1
  %second_step = getelementptr [3 x i64], ptr %steps, i64 0, i64 1
  br i1 %two, label %second, label %make
second:
  %y = call ptr @PyTuple_GetItem(ptr %inputs, i64 1)
  %y_type = call ptr @get(ptr %y, i64 8)
  %float_type = load ptr, ptr @float_type
  %is_number = icmp eq ptr %y_type, %float_type
  br i1 %is_number, label %number, label %right
number:
  %number_at = getelementptr i8, ptr %y, i64 ${SCALAR_VALUE}
  %wide = load double, ptr %number_at
  %narrow = fptrunc double %wide to float
  store double %wide, ptr %double_at
  store float %narrow, ptr %single_at
  %at = select i1 %is_single, ptr %single_at, ptr %double_at
  store ptr %at, ptr %second_data
  store i64 0, ptr %second_step
  br label %make
right:
  %y_value = call ptr @alike(ptr %y, ptr %dtype, ptr %shape)
  %no_right = icmp eq ptr %y_value, null
  br i1 %no_right, label %drop, label %both
both:
  %y_data = call ptr @get(ptr %y_value, i64 ${ARRAY_DATA})
  store ptr %y_data, ptr %second_data
  store i64 %itemsize, ptr %second_step
  br label %make
make:                                   ; takes a reference to the dtype
  %held = phi ptr [null, %more], [null, %number], [%y_value, %both]
  %new_array = load ptr, ptr @new_array
  %array_type = load ptr, ptr @array_type
  %descr = call ptr @get(ptr %words, i64 16)
  call void @Py_IncRef(ptr %descr)
  %ndim_at = getelementptr i8, ptr %x_value, i64 ${ARRAY_NDIM}
  %ndim = load i32, ptr %ndim_at
  %extents = call ptr @get(ptr %x_value, i64 ${ARRAY_EXTENTS})
  %found = call ptr %new_array(ptr %array_type, ptr %descr, i32 %ndim, ptr %extents, ptr null,
                               ptr null, i32 0, ptr null)
  %raised = icmp eq ptr %found, null
  br i1 %raised, label %drop, label %last
last:
  %out_data = getelementptr [3 x ptr], ptr %data, i64 0, i64 %count
  %out_step = getelementptr [3 x i64], ptr %steps, i64 0, i64 %count
  %found_data = call ptr @get(ptr %found, i64 ${ARRAY_DATA})
  %size_at = getelementptr i8, ptr %words, i64 24
  %found_size = load i64, ptr %size_at
  store ptr %found_data, ptr %out_data
  store i64 %found_size, ptr %out_step
  %size = call i64 @size_of(ptr %found)
  store i64 %size, ptr %length
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %run, label %keep
run:
  %loop = call ptr @get(ptr %words, i64 0)
  %its_data = call ptr @get(ptr %words, i64 8)
  call void %loop(ptr %data, ptr %length, ptr %steps, ptr %its_data)
  br label %keep
keep:
  %none = load ptr, ptr @none
  %nothing = load ptr, ptr @nothing
  %zero = load ptr, ptr @zero
  call void @replace(ptr %node, i64 ${NODE_VALUE}, ptr %found)
  call void @replace(ptr %node, i64 ${NODE_INPUTS}, ptr %nothing)
  call void @replace(ptr %node, i64 ${NODE_ROW}, ptr %none)
  call void @replace(ptr %node, i64 ${NODE_DEPTH}, ptr %zero)
  br label %drop
drop:
  %result = phi ptr [null, %right], [null, %make], [%found, %keep]
  %used = phi ptr [null, %right], [%held, %make], [%held, %keep]
  call void @Py_DecRef(ptr %used)
  call void @Py_DecRef(ptr %x_value)
  br label %give_up
give_up:
  %made = phi ptr [null, %entry], [null, %first], [null, %kind], [null, %function],
                  [null, %left], [%result, %drop]
  call void @Py_DecRef(ptr %inputs)
  ret ptr %made
}

; The settings of this context: a new reference. Null: an error.
define internal ptr @state() {
entry:
  %at = alloca ptr
  %none = load ptr, ptr @none
  %local = load ptr, ptr @local
  store ptr null, ptr %at
  %failed = call i32 @PyContextVar_Get(ptr %local, ptr null, ptr %at)
  %own = load ptr, ptr %at
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %error, label %whose
whose:
  %common = icmp eq ptr %own, %none
  br i1 %common, label %base, label %out
base:
  call void @Py_DecRef(ptr %own)
  %settings = load ptr, ptr @settings
  %base_name = load ptr, ptr @base_name
  %all = call ptr @PyObject_GetAttr(ptr %settings, ptr %base_name)
  br label %out
out:
  %found = phi ptr [%own, %whose], [%all, %base]
  ret ptr %found
error:
  ret ptr null
}

; What a launch must know of an input: a node's form, null if it has none, or a number's type.
define internal ptr @form(ptr %input) {
entry:
  %type = call ptr @get(ptr %input, i64 8)
  %node_type = load ptr, ptr @node_type
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %node, label %number
node:
  %form = call ptr @get(ptr %input, i64 ${NODE_FORM})
  ret ptr %form
number:
  ret ptr %type
}

; What a launch takes for an input: a new reference.
define internal ptr @argument(ptr %input) {
entry:
  %type = call ptr @get(ptr %input, i64 8)
  %node_type = load ptr, ptr @node_type
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %node, label %out
node:
  %value = call ptr @get(ptr %input, i64 ${NODE_VALUE})
  br label %out
out:
  %found = phi ptr [%input, %entry], [%value, %node]
  call void @Py_IncRef(ptr %found)
  ret ptr %found
}

; The `Alone` of a kind of op, a new reference; null if there is none. The last of them are kept by their
; parts, which takes a tenth of the time of a tuple and a dictionary: the dictionary and the parts as
; well, so that no other objects are at their addresses.
define internal ptr @known(ptr %all, ptr %row, ptr %x_form, ptr %y_form) {
entry:
  %none = load ptr, ptr @none
  %row_number = ptrtoint ptr %row to i64
  %x_number = ptrtoint ptr %x_form to i64
  %y_number = ptrtoint ptr %y_form to i64
  %row_bits = lshr i64 %row_number, 4
  %x_bits = lshr i64 %x_number, 5
  %y_bits = lshr i64 %y_number, 7
  %some_bits = xor i64 %row_bits, %x_bits
  %bits = xor i64 %some_bits, %y_bits
  %number = and i64 %bits, 63
  %place = getelementptr [64 x [5 x ptr]], ptr @last, i64 0, i64 %number
  %its_all = call ptr @get(ptr %place, i64 0)
  %its_row = call ptr @get(ptr %place, i64 8)
  %its_x = call ptr @get(ptr %place, i64 16)
  %its_y = call ptr @get(ptr %place, i64 24)
  %found = call ptr @get(ptr %place, i64 32)
  %same_all = icmp eq ptr %its_all, %all
  %same_row = icmp eq ptr %its_row, %row
  %same_x = icmp eq ptr %its_x, %x_form
  %same_y = icmp eq ptr %its_y, %y_form
  %same_two = and i1 %same_all, %same_row
  %same_forms = and i1 %same_x, %same_y
  %same = and i1 %same_two, %same_forms
  br i1 %same, label %hit, label %count
hit:
  call void @Py_IncRef(ptr %found)
  ret ptr %found
count:
  %single = icmp eq ptr %y_form, null
  br i1 %single, label %one, label %two
one:
  %key_of_one = call ptr (i64, ...) @PyTuple_Pack(i64 2, ptr %row, ptr %x_form)
  br label %find
two:
  %key_of_two = call ptr (i64, ...) @PyTuple_Pack(i64 3, ptr %row, ptr %x_form, ptr %y_form)
  br label %find
find:
  %key = phi ptr [%key_of_one, %one], [%key_of_two, %two]
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %no, label %look_up
look_up:
  %entry_found = call ptr @PyDict_GetItem(ptr %all, ptr %key)
  call void @Py_DecRef(ptr %key)
  %unknown = icmp eq ptr %entry_found, null
  %refused = icmp eq ptr %entry_found, %none
  %not_known = or i1 %unknown, %refused
  br i1 %not_known, label %no, label %keep
keep:                                   ; the collector may have run this: what is there now goes
  %old_all = call ptr @get(ptr %place, i64 0)
  %old_row = call ptr @get(ptr %place, i64 8)
  %old_x = call ptr @get(ptr %place, i64 16)
  %old_y = call ptr @get(ptr %place, i64 24)
  %old_found = call ptr @get(ptr %place, i64 32)
  call void @put(ptr %place, i64 0, ptr %all)
  call void @put(ptr %place, i64 8, ptr %row)
  call void @put(ptr %place, i64 16, ptr %x_form)
  call void @put(ptr %place, i64 24, ptr %y_form)
  call void @put(ptr %place, i64 32, ptr %entry_found)
  call void @Py_IncRef(ptr %entry_found)
  call void @Py_DecRef(ptr %old_all)
  call void @Py_DecRef(ptr %old_row)
  call void @Py_DecRef(ptr %old_x)
  call void @Py_DecRef(ptr %old_y)
  call void @Py_DecRef(ptr %old_found)
  ret ptr %entry_found
no:
  ret ptr null
}

; Compute a node of inputs that are there by one launch that is known: what `alone` does.
define internal ptr @alone(ptr %node) {
entry:
  %given = alloca [2 x ptr]
  %none = load ptr, ptr @none
  %inputs = call ptr @get(ptr %node, i64 ${NODE_INPUTS})
  call void @Py_IncRef(ptr %inputs)
  %count = call i64 @PyTuple_Size(ptr %inputs)
  %one = icmp eq i64 %count, 1
  %two = icmp eq i64 %count, 2
  %one_or_two = or i1 %one, %two
  br i1 %one_or_two, label %settings, label %no
settings:
  %ops = load ptr, ptr @ops
  %state = call ptr @state()
  %made_under = call ptr @PyList_GetItem(ptr %ops, i64 0)
  %same_state = icmp eq ptr %state, %made_under
  call void @Py_DecRef(ptr %state)
  br i1 %same_state, label %first, label %no
first:
  %row = call ptr @get(ptr %node, i64 ${NODE_ROW})
  %x = call ptr @PyTuple_GetItem(ptr %inputs, i64 0)
  %x_form = call ptr @form(ptr %x)
  %no_x = icmp eq ptr %x_form, null
  br i1 %no_x, label %no, label %more
more:
  br i1 %two, label %second, label %single
second:
  %y = call ptr @PyTuple_GetItem(ptr %inputs, i64 1)
  %y_form = call ptr @form(ptr %y)
  %no_y = icmp eq ptr %y_form, null
  %same = icmp eq ptr %x, %y
  %not_two = or i1 %no_y, %same
  br i1 %not_two, label %no, label %single
single:
  %last = phi ptr [null, %more], [%y, %second]
  %last_form = phi ptr [null, %more], [%y_form, %second]
  %all = call ptr @PyList_GetItem(ptr %ops, i64 1)
  call void @Py_IncRef(ptr %all)        ; the collector may run there, and settings change
  %known = call ptr @known(ptr %all, ptr %row, ptr %x_form, ptr %last_form)
  call void @Py_DecRef(ptr %all)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %no, label %take
take:
  %fresh = call ptr @PyTuple_GetItem(ptr %known, i64 ${ALONE_FRESH})
  %is_python = icmp eq ptr %fresh, %none
  br i1 %is_python, label %give_up, label %order
order:
  %turned = call ptr @PyTuple_GetItem(ptr %known, i64 ${ALONE_TURNED})
  %true = load ptr, ptr @true
  %is_turned = icmp eq ptr %turned, %true
  %a = select i1 %is_turned, ptr %last, ptr %x
  %b = select i1 %is_turned, ptr %x, ptr %last
  %a_value = call ptr @argument(ptr %a)
  store ptr %a_value, ptr %given
  br i1 %two, label %other, label %launch
other:
  %second_at = getelementptr [2 x ptr], ptr %given, i64 0, i64 1
  %b_value = call ptr @argument(ptr %b)
  store ptr %b_value, ptr %second_at
  br label %launch
launch:
  %used = phi ptr [null, %order], [%b_value, %other]
  %found = call ptr @PyObject_Vectorcall(ptr %fresh, ptr %given, i64 %count, ptr null)
  call void @Py_DecRef(ptr %a_value)
  call void @Py_DecRef(ptr %used)
  %raised = icmp eq ptr %found, null
  br i1 %raised, label %give_up, label %check
check:
  %not_here = icmp eq ptr %found, %none
  br i1 %not_here, label %strange, label %keep
keep:
  %nothing = load ptr, ptr @nothing
  %zero = load ptr, ptr @zero
  %form = call ptr @PyTuple_GetItem(ptr %known, i64 ${ALONE_FORM})
  %old_form = call ptr @get(ptr %node, i64 ${NODE_FORM})
  call void @replace(ptr %node, i64 ${NODE_VALUE}, ptr %found)
  call void @put(ptr %node, i64 ${NODE_FORM}, ptr %form)
  call void @Py_DecRef(ptr %old_form)
  call void @replace(ptr %node, i64 ${NODE_INPUTS}, ptr %nothing)
  call void @replace(ptr %node, i64 ${NODE_ROW}, ptr %none)
  call void @replace(ptr %node, i64 ${NODE_DEPTH}, ptr %zero)
  br label %give_up
strange:
  call void @Py_DecRef(ptr %found)
  br label %give_up
give_up:
  %made = phi ptr [null, %take], [null, %launch], [%found, %keep], [null, %strange]
  call void @Py_DecRef(ptr %known)
  br label %no
no:
  %result = phi ptr [null, %entry], [null, %settings], [null, %first], [null, %second],
                    [null, %single], [%made, %give_up]
  call void @Py_DecRef(ptr %inputs)
  ret ptr %result
}

; The value of a node of another device: a new reference. Null without an error: not here.
define internal ptr @elsewhere(ptr %node) {
entry:
  %error_type = alloca ptr
  %error_value = alloca ptr
  %error_trace = alloca ptr
  %none = load ptr, ptr @none
  %acquire = load ptr, ptr @acquire
  %locked = call ptr @PyObject_Vectorcall(ptr %acquire, ptr null, i64 0, ptr null)
  %not_locked = icmp eq ptr %locked, null
  br i1 %not_locked, label %out, label %look
look:
  call void @Py_DecRef(ptr %locked)
  %value = call ptr @get(ptr %node, i64 ${NODE_VALUE})
  %waits = icmp eq ptr %value, %none
  br i1 %waits, label %compute, label %there
there:
  call void @Py_IncRef(ptr %value)
  br label %unlock
compute:
  %made = call ptr @alone(ptr %node)
  br label %unlock
unlock:
  %found = phi ptr [%value, %there], [%made, %compute]
  call void @PyErr_Fetch(ptr %error_type, ptr %error_value, ptr %error_trace)
  %release = load ptr, ptr @release
  %unlocked = call ptr @PyObject_Vectorcall(ptr %release, ptr null, i64 0, ptr null)
  call void @Py_DecRef(ptr %unlocked)
  %e_type = load ptr, ptr %error_type
  %e_value = load ptr, ptr %error_value
  %e_trace = load ptr, ptr %error_trace
  call void @PyErr_Restore(ptr %e_type, ptr %e_value, ptr %e_trace)
  br label %out
out:
  %result = phi ptr [null, %entry], [%found, %unlock]
  ret ptr %result
}

; The value of a node, computed if it waits: a new reference.
define internal ptr @read_node(ptr %node) {
entry:
  %node_at = alloca ptr
  %error_type = alloca ptr
  %error_value = alloca ptr
  %error_trace = alloca ptr
  %none = load ptr, ptr @none
  %value = call ptr @get(ptr %node, i64 ${NODE_VALUE})
  %waits = icmp eq ptr %value, %none
  br i1 %waits, label %place, label %there
there:
  call void @Py_IncRef(ptr %value)
  ret ptr %value
place:
  %device = call ptr @get(ptr %node, i64 ${NODE_DEVICE})
  %cpu_name = load ptr, ptr @cpu_name
  %on_cpu = call i1 @equal(ptr %device, ptr %cpu_name)
  br i1 %on_cpu, label %ask, label %launch
launch:
  %launched = call ptr @elsewhere(ptr %node)
  %has_launched = icmp ne ptr %launched, null
  br i1 %has_launched, label %out, label %why
ask:
  %state_of = call ptr @state()
  %no_state = icmp eq ptr %state_of, null
  br i1 %no_state, label %error, label %state
state:
  %fusion_name = load ptr, ptr @fusion_name
  %verify_name = load ptr, ptr @verify_name
  %fusion = call ptr @PyDict_GetItem(ptr %state_of, ptr %fusion_name)
  %verify = call i1 @equal(ptr %fusion, ptr %verify_name)
  call void @Py_DecRef(ptr %state_of)
  br i1 %verify, label %other, label %lock
lock:
  %acquire = load ptr, ptr @acquire
  %locked = call ptr @PyObject_Vectorcall(ptr %acquire, ptr null, i64 0, ptr null)
  %not_locked = icmp eq ptr %locked, null
  br i1 %not_locked, label %error, label %work
work:
  call void @Py_DecRef(ptr %locked)
  %made = call ptr @value_of(ptr %node)
  call void @PyErr_Fetch(ptr %error_type, ptr %error_value, ptr %error_trace)
  %release = load ptr, ptr @release
  %unlocked = call ptr @PyObject_Vectorcall(ptr %release, ptr null, i64 0, ptr null)
  call void @Py_DecRef(ptr %unlocked)
  %e_type = load ptr, ptr %error_type
  %e_value = load ptr, ptr %error_value
  %e_trace = load ptr, ptr %error_trace
  call void @PyErr_Restore(ptr %e_type, ptr %e_value, ptr %e_trace)
  %done = icmp ne ptr %made, null
  br i1 %done, label %out, label %why
out:
  %result = phi ptr [%launched, %launch], [%made, %work]
  ret ptr %result
why:
  %raised = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %raised, null
  br i1 %is_error, label %error, label %other
other:
  store ptr %node, ptr %node_at
  %by_python = load ptr, ptr @by_python
  %slow = call ptr @PyObject_Vectorcall(ptr %by_python, ptr %node_at, i64 1, ptr null)
  ret ptr %slow
error:
  ret ptr null
}

define ptr @read(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 1
  br i1 %good, label %kind, label %wrong
kind:
  %node = load ptr, ptr %given
  %type = call ptr @get(ptr %node, i64 8)
  %node_type = load ptr, ptr @node_type
  %is_node = icmp eq ptr %type, %node_type
  br i1 %is_node, label %read, label %other
read:
  %found = call ptr @read_node(ptr %node)
  ret ptr %found
other:
  %by_python = load ptr, ptr @by_python
  %slow = call ptr @PyObject_Vectorcall(ptr %by_python, ptr %given, i64 1, ptr null)
  ret ptr %slow
wrong:
  %bad_argument = call i32 @PyErr_BadArgument()
  ret ptr null
}

; `Tensor.buffer`.
define ptr @buffer(ptr %self, ptr %nothing) {
entry:
  %given = alloca ptr
  %none = load ptr, ptr @none
  %tracing = load ptr, ptr @tracing
  %current_name = load ptr, ptr @current_name
  %current = call ptr @PyObject_GetAttr(ptr %tracing, ptr %current_name)
  %failed = icmp eq ptr %current, null
  br i1 %failed, label %error, label %look
look:
  call void @Py_DecRef(ptr %current)
  %untraced = icmp eq ptr %current, %none
  %view = call ptr @get(ptr %self, i64 ${TENSOR__VIEW})
  %whole = icmp eq ptr %view, %none
  %storage = call ptr @get(ptr %self, i64 ${TENSOR__STORAGE})
  %made = icmp ne ptr %storage, null
  %plain = and i1 %untraced, %whole
  %simple = and i1 %plain, %made
  br i1 %simple, label %take, label %python
take:                                   ; another thread may replace the storage's
  %node = call ptr @get(ptr %storage, i64 ${STORAGE_NODE})
  call void @Py_IncRef(ptr %node)
  %found = call ptr @read_node(ptr %node)
  call void @Py_DecRef(ptr %node)
  ret ptr %found
python:
  store ptr %self, ptr %given
  %by_python = load ptr, ptr @buffer_by_python
  %other = call ptr @PyObject_Vectorcall(ptr %by_python, ptr %given, i64 1, ptr null)
  ret ptr %other
error:
  ret ptr null
}
; `Tensor.__array__`: of a whole tensor on the host, asked for as it is, a view that cannot be
; written.
define ptr @array(ptr %tensor, ptr %given, i64 %count, ptr %names) {
entry:
  %arguments = alloca [4 x ptr]
  %none = load ptr, ptr @none
  %view = call ptr @get(ptr %tensor, i64 ${TENSOR__VIEW})
  %device = call ptr @get(ptr %tensor, i64 ${TENSOR_DEVICE})
  %cpu_name = load ptr, ptr @cpu_name
  %unasked = icmp eq i64 %count, 0
  %unnamed = icmp eq ptr %names, null
  %plain = and i1 %unasked, %unnamed
  %whole = icmp eq ptr %view, %none
  %on_cpu = icmp eq ptr %device, %cpu_name
  %here = and i1 %whole, %on_cpu
  %usual = and i1 %plain, %here
  br i1 %usual, label %trace, label %python
trace:
  %tracing = load ptr, ptr @tracing
  %current_name = load ptr, ptr @current_name
  %current = call ptr @PyObject_GetAttr(ptr %tracing, ptr %current_name)
  %no_current = icmp eq ptr %current, null
  br i1 %no_current, label %error, label %traced
traced:
  call void @Py_DecRef(ptr %current)
  %nobody = icmp eq ptr %current, %none
  br i1 %nobody, label %read, label %python
read:
  %storage = call ptr @get(ptr %tensor, i64 ${TENSOR__STORAGE})
  %node = call ptr @get(ptr %storage, i64 ${STORAGE_NODE})
  call void @Py_IncRef(ptr %node)
  %value = call ptr @read_node(ptr %node)
  %no_value = icmp eq ptr %value, null
  br i1 %no_value, label %drop, label %kind
kind:
  %type = call ptr @get(ptr %value, i64 8)
  %array_type = load ptr, ptr @array_type
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %look, label %strange
look:
  %view_array = load ptr, ptr @view_array
  %seen = call ptr %view_array(ptr %value, ptr null, ptr null)
  call void @Py_DecRef(ptr %value)
  %no_seen = icmp eq ptr %seen, null
  br i1 %no_seen, label %drop, label %protect
protect:
  %flags_at = getelementptr i8, ptr %seen, i64 ${ARRAY_FLAGS}
  %flags = load i32, ptr %flags_at
  %protected = and i32 %flags, ${READONLY}
  store i32 %protected, ptr %flags_at
  %true = load ptr, ptr @true
  call void @replace(ptr %node, i64 ${NODE_EXPORTED}, ptr %true)
  br label %drop
drop:
  %result = phi ptr [null, %read], [null, %look], [%seen, %protect]
  call void @Py_DecRef(ptr %node)
  ret ptr %result
strange:
  call void @Py_DecRef(ptr %value)
  call void @Py_DecRef(ptr %node)
  br label %python
python:                                 ; with the tensor before what was given
  %by_name = call i64 @number_of(ptr %names)
  %all = add i64 %count, %by_name
  %too_many = icmp sgt i64 %all, 3
  br i1 %too_many, label %wrong, label %copy
copy:
  store ptr %tensor, ptr %arguments
  br label %each
each:
  %i = phi i64 [0, %copy], [%next, %one]
  %more = icmp slt i64 %i, %all
  br i1 %more, label %one, label %call
one:
  %from = getelementptr ptr, ptr %given, i64 %i
  %next = add i64 %i, 1
  %to = getelementptr ptr, ptr %arguments, i64 %next
  %argument = load ptr, ptr %from
  store ptr %argument, ptr %to
  br label %each
call:
  %positions = add i64 %count, 1
  %array_by_python = load ptr, ptr @array_by_python
  %slow = call ptr @PyObject_Vectorcall(ptr %array_by_python, ptr %arguments, i64 %positions,
                                        ptr %names)
  ret ptr %slow
wrong:
  %bad_argument = call i32 @PyErr_BadArgument()
  br label %error
error:
  ret ptr null
}

; How many names a tuple has, or nothing.
define internal i64 @number_of(ptr %names) {
entry:
  %unnamed = icmp eq ptr %names, null
  br i1 %unnamed, label %none, label %some
some:
  %count = call i64 @PyTuple_Size(ptr %names)
  ret i64 %count
none:
  ret i64 0
}
