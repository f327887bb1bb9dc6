; Recording an op and looking at what waits, as builtins of CPython. `quick.py` explains them, has
; the same in Python, and fills in the offsets of the objects' fields.

@node_type = global ptr null
@storage_type = global ptr null
@tensor_type = global ptr null
@float_type = global ptr null
@int_type = global ptr null
@none = global ptr null
@false = global ptr null
@zero = global ptr null
@nothing = global ptr null              ; the empty tuple

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
declare i32 @PyErr_BadArgument()

define internal ptr @get(ptr %object, i64 %offset) {
  %at = getelementptr i8, ptr %object, i64 %offset
  %value = load ptr, ptr %at
  ret ptr %value
}

; A field of a new object; `give` is for values that nobody else will let go of.
define internal void @give(ptr %object, i64 %offset, ptr %value) {
  %at = getelementptr i8, ptr %object, i64 %offset
  store ptr %value, ptr %at
  ret void
}
define internal void @put(ptr %object, i64 %offset, ptr %value) {
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
define internal i1 @is_plain(ptr %tensor) {
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
  %same_shape = call i1 @equal(ptr %shape, ptr %y_shape)
  %same_device = call i1 @equal(ptr %device, ptr %y_device)
  %alike = and i1 %same_shape, %same_device
  br i1 %alike, label %together, label %no
together:
  %other = phi ptr [%y, %number], [%y_node, %shapes]
  %its_depth = phi i64 [0, %number], [%y_depth, %shapes]
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
  br i1 %no_own, label %raised, label %look_up
look_up:
  %place = call ptr @PyDict_SetDefault(ptr %numbered, ptr %x, ptr %own)
  %no_place = icmp eq ptr %place, null
  br i1 %no_place, label %drop, label %tell
drop:
  call void @Py_DecRef(ptr %own)
  br label %raised
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
  br i1 %no_answer, label %raised, label %tell_answer
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
  %i_next = add i64 %i, 1
  br label %each
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
