; A launch whose result is new memory, and what takes a dead block back, as builtins of CPython.
; `quick.py` explains them and fills in the offsets of the objects' fields and of the words in %m.

@block_type = global ptr null
@storage_type = global ptr null
@array_type = global ptr null
@float_type = global ptr null
@int_type = global ptr null
@none = global ptr null
@true = global ptr null
@false = global ptr null
@zero = global ptr null
@name_key = global ptr null             ; "__name__"
@package = global ptr null              ; "ruda."
@by_python = global ptr null            ; what takes back a block of a pool that is not plain

declare ptr @PyType_GenericAlloc(ptr, i64)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)            ; null is fine
declare ptr @PyTuple_Pack(i64, ...)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_New(i64)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i32 @PyList_Append(ptr, ptr)
declare ptr @PyDict_GetItem(ptr, ptr)
declare ptr @PyLong_FromLong(i64)
declare i64 @PyLong_AsLong(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyWeakref_NewRef(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare i64 @PyUnicode_Tailmatch(ptr, ptr, i64, i64, i32)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_GetFrame()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyFrame_GetBack(ptr)
declare ptr @PyFrame_GetCode(ptr)
declare ptr @PyFrame_GetGlobals(ptr)
declare i32 @PyFrame_GetLasti(ptr)
declare double @llvm.fabs.f64(double)

define internal ptr @get(ptr %object, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  %value = load ptr, ptr %at
  ret ptr %value
}

define internal i64 @word(ptr %object, i64 %offset) alwaysinline {
  %at = getelementptr i8, ptr %object, i64 %offset
  %value = load i64, ptr %at
  ret i64 %value
}

define internal i32 @half(ptr %object, i64 %offset) alwaysinline {
  %all = call i64 @word(ptr %object, i64 %offset)
  %value = trunc i64 %all to i32
  ret i32 %value
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

; ---- the pool ------------------------------------------------------------------------------------
; What follows is one step for all other threads, as nothing in it lets go of the GIL or runs Python
; code (numbers are no containers, so that no garbage is collected): it takes no lock.

; Add to a number in a field; the sum. Without memory for the number the field stays as it is:
; statistics are wrong then, but the pool goes on.
define internal i64 @add(ptr %object, i64 %offset, i64 %more) {
entry:
  %old = call ptr @get(ptr %object, i64 %offset)
  %value = call i64 @PyLong_AsLong(ptr %old)
  %sum = add i64 %value, %more
  %new = call ptr @PyLong_FromLong(i64 %sum)
  %unmade = icmp eq ptr %new, null
  br i1 %unmade, label %stay, label %keep
keep:
  call void @give(ptr %object, i64 %offset, ptr %new)
  call void @Py_DecRef(ptr %old)
  ret i64 %sum
stay:
  call void @PyErr_Clear()
  ret i64 %value
}

; The address of a free block of the size, if there is one and no other waits for its stream.
define internal ptr @free_block(ptr %pool, ptr %size) {
entry:
  %waiting = call ptr @get(ptr %pool, i64 ${POOL_WAITING})
  %some = call i64 @PyList_Size(ptr %waiting)
  %none_waits = icmp eq i64 %some, 0
  br i1 %none_waits, label %look, label %no
look:
  %free = call ptr @get(ptr %pool, i64 ${POOL_FREE})
  %kept = call ptr @PyDict_GetItem(ptr %free, ptr %size)
  %unknown = icmp eq ptr %kept, null
  br i1 %unknown, label %no, label %count
count:
  %length = call i64 @PyList_Size(ptr %kept)
  %there = icmp sgt i64 %length, 0
  br i1 %there, label %pop, label %no
pop:
  %last = sub i64 %length, 1
  %address = call ptr @PyList_GetItem(ptr %kept, i64 %last)
  call void @Py_IncRef(ptr %address)
  %uncut = call i32 @PyList_SetSlice(ptr %kept, i64 %last, i64 %length, ptr null)
  %still = icmp ne i32 %uncut, 0
  br i1 %still, label %leave, label %tell
leave:                                  ; a list needs memory also to shrink
  call void @PyErr_Clear()
  call void @Py_DecRef(ptr %address)
  br label %no
tell:
  %bytes = call i64 @PyLong_AsLong(ptr %size)
  %less = sub i64 0, %bytes
  %requests = call i64 @add(ptr %pool, i64 ${POOL_REQUESTS}, i64 1)
  %reused = call i64 @add(ptr %pool, i64 ${POOL_REUSED}, i64 1)
  %cached = call i64 @add(ptr %pool, i64 ${POOL_CACHED}, i64 %less)
  %held = call i64 @add(ptr %pool, i64 ${POOL_IN_USE}, i64 %bytes)
  %peak_object = call ptr @get(ptr %pool, i64 ${POOL_PEAK})
  %peak = call i64 @PyLong_AsLong(ptr %peak_object)
  %more = sub i64 %held, %peak
  %higher = icmp sgt i64 %more, 0
  br i1 %higher, label %raise, label %out
raise:
  %new_peak = call i64 @add(ptr %pool, i64 ${POOL_PEAK}, i64 %more)
  br label %out
out:
  ret ptr %address
no:
  ret ptr null
}

; `Block.__del__`.
define ptr @give_back(ptr %block, ptr %nothing) {
entry:
  %given = alloca ptr
  %none = load ptr, ptr @none
  %pool = call ptr @get(ptr %block, i64 ${BLOCK_POOL})
  %queues = call ptr @get(ptr %block, i64 ${BLOCK_QUEUES})
  %address = call ptr @get(ptr %block, i64 ${BLOCK_ADDRESS})
  %size = call ptr @get(ptr %block, i64 ${BLOCK_SIZE})
  %unmade = icmp eq ptr %queues, null   ; the last field to be set
  br i1 %unmade, label %out, label %kind
kind:
  %closed = call ptr @get(ptr %pool, i64 ${POOL_CLOSED})
  %keep = call ptr @get(ptr %pool, i64 ${POOL_KEEP})
  %false = load ptr, ptr @false
  %zero = load ptr, ptr @zero
  %open = icmp eq ptr %closed, %false
  br i1 %open, label %simple, label %out
simple:
  %all = icmp eq ptr %keep, %zero
  %plain = icmp eq ptr %queues, %none
  %usual = and i1 %all, %plain
  br i1 %usual, label %look, label %python
look:
  %free = call ptr @get(ptr %pool, i64 ${POOL_FREE})
  %kept = call ptr @PyDict_GetItem(ptr %free, ptr %size)
  %unknown = icmp eq ptr %kept, null
  br i1 %unknown, label %python, label %append
append:
  %failed = call i32 @PyList_Append(ptr %kept, ptr %address)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %error, label %tell
tell:
  %bytes = call i64 @PyLong_AsLong(ptr %size)
  %less = sub i64 0, %bytes
  %in_use = call i64 @add(ptr %pool, i64 ${POOL_IN_USE}, i64 %less)
  %cached = call i64 @add(ptr %pool, i64 ${POOL_CACHED}, i64 %bytes)
  br label %out
python:
  store ptr %block, ptr %given
  %by_python = load ptr, ptr @by_python
  %answer = call ptr @PyObject_Vectorcall(ptr %by_python, ptr %given, i64 1, ptr null)
  ret ptr %answer
out:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
error:
  ret ptr null
}

; A block for a result: made before it gets its memory, which would be lost if it could not be.
define internal ptr @take(ptr %m) {
entry:
  %given = alloca [2 x ptr]
  %none = load ptr, ptr @none
  %pool = call ptr @get(ptr %m, i64 ${M_POOL})
  %size = call ptr @get(ptr %m, i64 ${M_SIZE})
  %block_type = load ptr, ptr @block_type
  %block = call ptr @PyType_GenericAlloc(ptr %block_type, i64 0)
  %no_block = icmp eq ptr %block, null
  br i1 %no_block, label %failed, label %look
look:
  %address = call ptr @free_block(ptr %pool, ptr %size)
  %missing = icmp eq ptr %address, null
  br i1 %missing, label %python, label %fill
fill:
  call void @put(ptr %block, i64 ${BLOCK_POOL}, ptr %pool)
  call void @give(ptr %block, i64 ${BLOCK_ADDRESS}, ptr %address)
  call void @put(ptr %block, i64 ${BLOCK_SIZE}, ptr %size)
  call void @put(ptr %block, i64 ${BLOCK_QUEUES}, ptr %none)
  ret ptr %block
failed:
  ret ptr null
python:
  call void @Py_DecRef(ptr %block)
  %take = call ptr @get(ptr %m, i64 ${M_TAKE})
  %nbytes = call ptr @get(ptr %m, i64 ${M_NBYTES})
  %second = getelementptr [2 x ptr], ptr %given, i64 0, i64 1
  store ptr %size, ptr %given
  store ptr %nbytes, ptr %second
  %found = call ptr @PyObject_Vectorcall(ptr %take, ptr %given, i64 2, ptr null)
  ret ptr %found
}

; ---- the launch ----------------------------------------------------------------------------------

; Note who asked: the first frame outside of this package. False: an error is set.
define internal i1 @note(ptr %name, ptr %recent) {
entry:
  %given = alloca ptr
  %first = call ptr @PyEval_GetFrame()
  %no_frame = icmp eq ptr %first, null
  br i1 %no_frame, label %fine, label %begin
begin:
  call void @Py_IncRef(ptr %first)
  br label %look
look:
  %frame = phi ptr [%first, %begin], [%back, %step]
  %globals = call ptr @PyFrame_GetGlobals(ptr %frame)
  %name_key = load ptr, ptr @name_key
  %module = call ptr @PyDict_GetItem(ptr %globals, ptr %name_key)
  %nameless = icmp eq ptr %module, null
  br i1 %nameless, label %outside, label %compare
compare:
  %package = load ptr, ptr @package
  %inside = call i64 @PyUnicode_Tailmatch(ptr %module, ptr %package, i64 0, i64 ${FAR}, i32 -1)
  %ours = icmp eq i64 %inside, 1
  br i1 %ours, label %below, label %outside
below:
  call void @Py_DecRef(ptr %globals)
  %back = call ptr @PyFrame_GetBack(ptr %frame)
  %last = icmp eq ptr %back, null
  br i1 %last, label %found, label %step
step:
  call void @Py_DecRef(ptr %frame)
  br label %look
outside:
  call void @Py_DecRef(ptr %globals)
  br label %found
found:
  call void @PyErr_Clear()              ; of a module's name that is no text
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  %at = call i32 @PyFrame_GetLasti(ptr %frame)
  call void @Py_DecRef(ptr %frame)
  %wide = sext i32 %at to i64
  %number = call ptr @PyLong_FromLong(i64 %wide)
  %numberless = icmp eq ptr %number, null
  br i1 %numberless, label %drop, label %pack
drop:
  call void @Py_DecRef(ptr %code)
  br label %error
pack:
  %asked = call ptr (i64, ...) @PyTuple_Pack(i64 3, ptr %name, ptr %code, ptr %number)
  call void @Py_DecRef(ptr %code)
  call void @Py_DecRef(ptr %number)
  %unmade = icmp eq ptr %asked, null
  br i1 %unmade, label %error, label %tell
tell:
  store ptr %asked, ptr %given
  %told = call ptr @PyObject_Vectorcall(ptr %recent, ptr %given, i64 1, ptr null)
  call void @Py_DecRef(ptr %asked)
  %failed = icmp eq ptr %told, null
  call void @Py_DecRef(ptr %told)
  br i1 %failed, label %error, label %fine
fine:
  ret i1 true
error:
  ret i1 false
}

; `Gpu.note`.
define ptr @tell(ptr %self, ptr %given, i64 %count) {
entry:
  %good = icmp eq i64 %count, 1
  br i1 %good, label %go, label %wrong
go:
  %none = load ptr, ptr @none
  %name = load ptr, ptr %given
  %recent = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %noted = call i1 @note(ptr %name, ptr %recent)
  br i1 %noted, label %out, label %error
out:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
wrong:
  %bad = call i32 @PyErr_BadArgument()
  br label %error
error:
  ret ptr null
}

; The array of a block.
define internal ptr @made(ptr %m, ptr %block) {
entry:
  %none = load ptr, ptr @none
  %false = load ptr, ptr @false
  %zero = load ptr, ptr @zero
  %storage_type = load ptr, ptr @storage_type
  %array_type = load ptr, ptr @array_type
  %storage = call ptr @PyType_GenericAlloc(ptr %storage_type, i64 0)
  %no_storage = icmp eq ptr %storage, null
  br i1 %no_storage, label %failed, label %array
array:
  %out = call ptr @PyType_GenericAlloc(ptr %array_type, i64 0)
  %no_array = icmp eq ptr %out, null
  br i1 %no_array, label %failed, label %seen
seen:
  %seen_by = call ptr @PyList_New(i64 1)
  %no_list = icmp eq ptr %seen_by, null
  br i1 %no_list, label %failed, label %refer
refer:
  %reference = call ptr @PyWeakref_NewRef(ptr %out, ptr null)
  %unset = call i32 @PyList_SetItem(ptr %seen_by, i64 0, ptr %reference)
  %no_reference = icmp eq ptr %reference, null
  br i1 %no_reference, label %failed, label %fill
fill:
  %device = call ptr @get(ptr %m, i64 ${M_DEVICE})
  %address = call ptr @get(ptr %block, i64 ${BLOCK_ADDRESS})
  %nbytes = call ptr @get(ptr %m, i64 ${M_NBYTES})
  call void @put(ptr %storage, i64 ${STORAGE_OWNER}, ptr %block)
  call void @put(ptr %storage, i64 ${STORAGE_DEVICE}, ptr %device)
  call void @put(ptr %storage, i64 ${STORAGE_ADDRESS}, ptr %address)
  call void @put(ptr %storage, i64 ${STORAGE_NBYTES}, ptr %nbytes)
  call void @put(ptr %storage, i64 ${STORAGE_ON_HOST}, ptr %false)
  call void @put(ptr %storage, i64 ${STORAGE_READONLY}, ptr %false)
  call void @give(ptr %storage, i64 ${STORAGE_ARRAYS}, ptr %seen_by)
  %backend = call ptr @get(ptr %m, i64 ${M_BACKEND})
  %shape = call ptr @get(ptr %m, i64 ${M_SHAPE})
  %dtype = call ptr @get(ptr %m, i64 ${M_DTYPE})
  %strides = call ptr @get(ptr %m, i64 ${M_STRIDES})
  %type = call ptr @get(ptr %m, i64 ${M_TYPE})
  %kind = call ptr @get(ptr %m, i64 ${M_KIND})
  call void @put(ptr %out, i64 ${ARRAY__BACKEND}, ptr %backend)
  call void @give(ptr %out, i64 ${ARRAY_STORAGE}, ptr %storage)
  call void @put(ptr %out, i64 ${ARRAY_SHAPE}, ptr %shape)
  call void @put(ptr %out, i64 ${ARRAY_DTYPE}, ptr %dtype)
  call void @put(ptr %out, i64 ${ARRAY_STRIDES}, ptr %strides)
  call void @put(ptr %out, i64 ${ARRAY_OFFSET}, ptr %zero)
  call void @put(ptr %out, i64 ${ARRAY_POINTER}, ptr %address)
  call void @put(ptr %out, i64 ${ARRAY___RUDA_DEVICE__}, ptr %device)
  call void @put(ptr %out, i64 ${ARRAY___RUDA_ARRAY_TYPE__}, ptr %type)
  call void @put(ptr %out, i64 ${ARRAY___RUDA_KIND__}, ptr %kind)
  ret ptr %out
failed:
  %list = phi ptr [null, %entry], [null, %array], [null, %seen], [%seen_by, %refer]
  %unused = phi ptr [null, %entry], [null, %array], [%out, %seen],
                    [%out, %refer]
  call void @Py_DecRef(ptr %list)
  call void @Py_DecRef(ptr %unused)
  call void @Py_DecRef(ptr %storage)
  ret ptr null
}

; A Python number as a double, if it is one exactly, and finite where that is asked for.
define internal i1 @number(ptr %value, i64 %most, ptr %result) {
entry:
  %type = call ptr @get(ptr %value, i64 8)
  %float_type = load ptr, ptr @float_type
  %int_type = load ptr, ptr @int_type
  %is_float = icmp eq ptr %type, %float_type
  br i1 %is_float, label %float, label %other
float:
  %double = call double @PyFloat_AsDouble(ptr %value)
  store double %double, ptr %result
  ret i1 true
other:
  %is_int = icmp eq ptr %type, %int_type
  br i1 %is_int, label %int, label %no
int:
  %whole = call i64 @PyLong_AsLong(ptr %value)
  %least = sub i64 0, %most
  %low = icmp sge i64 %whole, %least
  %high = icmp sle i64 %whole, %most
  %exact = and i1 %low, %high
  br i1 %exact, label %convert, label %no
convert:
  %converted = sitofp i64 %whole to double
  store double %converted, ptr %result
  %raised = call ptr @PyErr_Occurred()  ; -1 may be a number too large
  %fine = icmp eq ptr %raised, null
  br i1 %fine, label %yes, label %no
yes:
  ret i1 true
no:
  call void @PyErr_Clear()
  ret i1 false
}

; A new array, of a launch's inputs. None: these are not for here.
define ptr @launch(ptr %self, ptr %given, i64 %count) {
entry:
  %number = alloca double
  %refused_given = alloca [2 x ptr]
  %none = load ptr, ptr @none
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %m = call ptr @get(ptr %holder, i64 ${ARRAY_DATA})
  %inputs = call i64 @word(ptr %m, i64 ${M_INPUTS})
  %right = icmp eq i64 %count, %inputs
  br i1 %right, label %watched, label %no
watched:
  %observers = call ptr @get(ptr %m, i64 ${M_OBSERVERS})
  %some = call i64 @PyList_Size(ptr %observers)
  %unwatched = icmp eq i64 %some, 0
  br i1 %unwatched, label %prepare, label %no
prepare:
  %words = call i64 @word(ptr %m, i64 ${M_WORDS})
  %parameters = call i64 @word(ptr %m, i64 ${M_PARAMETERS})
  %template = call ptr @get(ptr %m, i64 ${M_TEMPLATE})
  %offsets = call ptr @get(ptr %m, i64 ${M_OFFSETS})
  %rows = call ptr @get(ptr %m, i64 ${M_ROWS})
  %buffer = alloca i64, i64 %words, align 16
  %table = alloca ptr, i64 %parameters, align 16
  br label %copy
copy:
  %w = phi i64 [0, %prepare], [%w_next, %copy_word]
  %w_more = icmp slt i64 %w, %words
  br i1 %w_more, label %copy_word, label %point
copy_word:
  %from = getelementptr i64, ptr %template, i64 %w
  %to = getelementptr i64, ptr %buffer, i64 %w
  %old = load i64, ptr %from
  store i64 %old, ptr %to
  %w_next = add i64 %w, 1
  br label %copy
point:
  %p = phi i64 [0, %copy], [%p_next, %point_one]
  %p_more = icmp slt i64 %p, %parameters
  br i1 %p_more, label %point_one, label %each
point_one:
  %offset_at = getelementptr i64, ptr %offsets, i64 %p
  %p_offset = load i64, ptr %offset_at
  %p_value = getelementptr i8, ptr %buffer, i64 %p_offset
  %p_at = getelementptr ptr, ptr %table, i64 %p
  store ptr %p_value, ptr %p_at
  %p_next = add i64 %p, 1
  br label %point
each:
  %i = phi i64 [0, %point], [%i_next, %each_done]
  %i_more = icmp slt i64 %i, %count
  br i1 %i_more, label %input, label %memory
input:
  %x_at = getelementptr ptr, ptr %given, i64 %i
  %x = load ptr, ptr %x_at
  %row = getelementptr [2 x i64], ptr %rows, i64 %i
  %action = load i64, ptr %row
  %x_offset = call i64 @word(ptr %row, i64 8)
  %place = getelementptr i8, ptr %buffer, i64 %x_offset
  switch i64 %action, label %no [
    i64 ${TAKES_ARRAY}, label %array
    i64 ${TAKES_SINGLE}, label %single
    i64 ${TAKES_DOUBLE}, label %double
  ]
array:
  %type = call ptr @get(ptr %x, i64 8)
  %array_type = load ptr, ptr @array_type
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %pointer, label %no
pointer:
  %address_object = call ptr @get(ptr %x, i64 ${ARRAY_POINTER})
  %freed = icmp eq ptr %address_object, null
  br i1 %freed, label %no, label %store_pointer
store_pointer:
  %address = call i64 @PyLong_AsLong(ptr %address_object)
  store i64 %address, ptr %place
  br label %each_done
single:
  %is_single = call i1 @number(ptr %x, i64 ${WHOLE_SINGLE}, ptr %number)
  br i1 %is_single, label %size_single, label %no
size_single:
  %wide = load double, ptr %number
  %size = call double @llvm.fabs.f64(double %wide)
  %usual = fcmp olt double %size, 3.0e38
  br i1 %usual, label %store_single, label %no
store_single:
  %narrow = fptrunc double %wide to float
  store float %narrow, ptr %place
  br label %each_done
double:
  %is_double = call i1 @number(ptr %x, i64 ${WHOLE_DOUBLE}, ptr %number)
  br i1 %is_double, label %store_double, label %no
store_double:
  %full = load double, ptr %number
  store double %full, ptr %place
  br label %each_done
each_done:
  %i_next = add i64 %i, 1
  br label %each
memory:
  %block = call ptr @take(ptr %m)
  %no_block = icmp eq ptr %block, null
  br i1 %no_block, label %error, label %result
result:
  %block_address = call ptr @get(ptr %block, i64 ${BLOCK_ADDRESS})
  %out = call i64 @PyLong_AsLong(ptr %block_address)
  %out_offset = call i64 @word(ptr %m, i64 ${M_OUT})
  %out_place = getelementptr i8, ptr %buffer, i64 %out_offset
  store i64 %out, ptr %out_place
  %name = call ptr @get(ptr %m, i64 ${M_NAME})
  %recent = call ptr @get(ptr %m, i64 ${M_RECENT})
  %noted = call i1 @note(ptr %name, ptr %recent)
  br i1 %noted, label %go, label %drop
go:
  %driver = call ptr @get(ptr %m, i64 ${M_DRIVER})
  %function = call ptr @get(ptr %m, i64 ${M_FUNCTION})
  %gx = call i32 @half(ptr %m, i64 ${M_GRID_X})
  %gy = call i32 @half(ptr %m, i64 ${M_GRID_Y})
  %gz = call i32 @half(ptr %m, i64 ${M_GRID_Z})
  %bx = call i32 @half(ptr %m, i64 ${M_BLOCK_X})
  %by = call i32 @half(ptr %m, i64 ${M_BLOCK_Y})
  %bz = call i32 @half(ptr %m, i64 ${M_BLOCK_Z})
  %shared = call i32 @half(ptr %m, i64 ${M_SHARED})
  %thread = call ptr @PyEval_SaveThread()  ; the driver waits where its queue is full
  %code = call i32 %driver(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz,
                           i32 %shared, ptr null, ptr %table, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  %good = icmp eq i32 %code, 0
  br i1 %good, label %finish, label %refused
refused:
  %wide_code = sext i32 %code to i64
  %code_object = call ptr @PyLong_FromLong(i64 %wide_code)
  %table_number = ptrtoint ptr %table to i64
  %table_object = call ptr @PyLong_FromLong(i64 %table_number)
  %no_code = icmp eq ptr %code_object, null
  %no_table = icmp eq ptr %table_object, null
  %unmade = or i1 %no_code, %no_table
  br i1 %unmade, label %forget, label %ask
forget:
  call void @Py_DecRef(ptr %code_object)
  call void @Py_DecRef(ptr %table_object)
  br label %drop
ask:
  %second = getelementptr [2 x ptr], ptr %refused_given, i64 0, i64 1
  store ptr %code_object, ptr %refused_given
  store ptr %table_object, ptr %second
  %tell = call ptr @get(ptr %m, i64 ${M_REFUSED})
  %answer = call ptr @PyObject_Vectorcall(ptr %tell, ptr %refused_given, i64 2, ptr null)
  call void @Py_DecRef(ptr %code_object)
  call void @Py_DecRef(ptr %table_object)
  %raised = icmp eq ptr %answer, null
  call void @Py_DecRef(ptr %answer)
  br i1 %raised, label %drop, label %finish
finish:
  %array_made = call ptr @made(ptr %m, ptr %block)
  call void @Py_DecRef(ptr %block)
  ret ptr %array_made
drop:
  call void @Py_DecRef(ptr %block)
  br label %error
no:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
error:
  ret ptr null
}
