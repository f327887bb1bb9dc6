; The launcher: a CPython builtin that checks its arguments against a table, packs their addresses
; and numbers into words, and runs a kernel body. `cpu_launcher.py` explains it, fills the tables,
; and fills in (and tries out) the offsets into Python's and NumPy's objects.

%Plan = type {
  i64, i64, i64, i64, i64, i64,         ; 0 launch 1 body 2 count 3 chunk 4 threads 5 slow
  ptr, ptr,                             ; 6 fallback 7 after (or null)
  i64, i64, i64, i64,                   ; 8 rows 9 guards 10 words 11 no_alias
  ptr, ptr,                             ; 12 the rows 13 the guards
  [${HEADER} x i64]                     ; 14 the header of the block
}
%Row = type {
  i64, ptr, i64,                        ; 0 what 1 type 2 offset of a scalar's value
  i64, i64, i64,                        ; 3 ndim 4 flags that must be set 5 written
  ptr, i64, i64,                        ; 6 descr 7 its type number, or -1 8 bytes of an element
  i64, i64                              ; 9 least 10 greatest value of a Python integer
}
%Guard = type { i64, ptr, ptr, ptr }    ; 0 is a cell 1 dictionary or cell 2 key 3 expected
%Range = type { i64, i64, i64 }         ; 0 first byte 1 end 2 written

@none = global ptr null                 ; None; the two values of Python's bool and of NumPy's
@true = global ptr null
@false = global ptr null
@numpy_true = global ptr null
@numpy_false = global ptr null

declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyDict_GetItem(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

; One array: check it, write address, extents, strides. False: it is not what the row says.
define internal i1 @array(ptr %object, ptr %row, ptr %to) {
entry:
  %ndim_of_row_at = getelementptr %Row, ptr %row, i32 0, i32 3
  %mask_at = getelementptr %Row, ptr %row, i32 0, i32 4
  %expected_at = getelementptr %Row, ptr %row, i32 0, i32 6
  %number_at = getelementptr %Row, ptr %row, i32 0, i32 7
  %descr_at = getelementptr i8, ptr %object, i64 ${ARRAY_DESCR}
  %descr = load ptr, ptr %descr_at
  %expected = load ptr, ptr %expected_at
  %same = icmp eq ptr %descr, %expected
  br i1 %same, label %shape, label %kind
kind:                                   ; another object for the same dtype, as after unpickling
  %type_num_at = getelementptr i8, ptr %descr, i64 ${DESCR_TYPE_NUM}
  %type_num32 = load i32, ptr %type_num_at
  %type_num = sext i32 %type_num32 to i64
  %number = load i64, ptr %number_at
  %same_number = icmp eq i64 %type_num, %number
  %order_at = getelementptr i8, ptr %descr, i64 ${DESCR_BYTEORDER}
  %order = load i8, ptr %order_at
  %native = icmp eq i8 %order, 61       ; '='
  %no_order = icmp eq i8 %order, 124    ; '|'
  %readable = or i1 %native, %no_order
  %good = and i1 %same_number, %readable
  br i1 %good, label %shape, label %no
shape:
  %ndim_at = getelementptr i8, ptr %object, i64 ${ARRAY_NDIM}
  %ndim32 = load i32, ptr %ndim_at
  %ndim = sext i32 %ndim32 to i64
  %ndim_of_row = load i64, ptr %ndim_of_row_at
  %same_ndim = icmp eq i64 %ndim, %ndim_of_row
  %flags_at = getelementptr i8, ptr %object, i64 ${ARRAY_FLAGS}
  %flags32 = load i32, ptr %flags_at
  %flags = zext i32 %flags32 to i64
  %mask = load i64, ptr %mask_at
  %set = and i64 %flags, %mask
  %all_set = icmp eq i64 %set, %mask
  %fits = and i1 %same_ndim, %all_set
  br i1 %fits, label %copy, label %no
copy:
  %data_at = getelementptr i8, ptr %object, i64 ${ARRAY_DATA}
  %data = load i64, ptr %data_at
  store i64 %data, ptr %to
  %extents_at = getelementptr i8, ptr %object, i64 ${ARRAY_EXTENTS}
  %extents = load ptr, ptr %extents_at
  %strides_at = getelementptr i8, ptr %object, i64 ${ARRAY_STRIDES}
  %strides = load ptr, ptr %strides_at
  %to_extents = getelementptr i64, ptr %to, i64 1
  %to_strides = getelementptr i64, ptr %to_extents, i64 %ndim
  br label %axes
axes:
  %axis = phi i64 [0, %copy], [%next, %axis_copy]
  %more = icmp slt i64 %axis, %ndim
  br i1 %more, label %axis_copy, label %yes
axis_copy:
  %extent_at = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %extent_at
  %to_extent = getelementptr i64, ptr %to_extents, i64 %axis
  store i64 %extent, ptr %to_extent
  %stride_at = getelementptr i64, ptr %strides, i64 %axis
  %stride = load i64, ptr %stride_at
  %to_stride = getelementptr i64, ptr %to_strides, i64 %axis
  store i64 %stride, ptr %to_stride
  %next = add i64 %axis, 1
  br label %axes
yes:
  ret i1 true
no:
  ret i1 false
}

; The bytes that a packed array covers.
define internal void @range(ptr %packed, ptr %row, ptr %range) {
entry:
  %ndim_at = getelementptr %Row, ptr %row, i32 0, i32 3
  %written_at = getelementptr %Row, ptr %row, i32 0, i32 5
  %itemsize_at = getelementptr %Row, ptr %row, i32 0, i32 8
  %end_at = getelementptr %Range, ptr %range, i32 0, i32 1
  %to_written = getelementptr %Range, ptr %range, i32 0, i32 2
  %written = load i64, ptr %written_at
  store i64 %written, ptr %to_written
  %ndim = load i64, ptr %ndim_at
  %itemsize = load i64, ptr %itemsize_at
  %data = load i64, ptr %packed
  %data_end = add i64 %data, %itemsize
  %extents = getelementptr i64, ptr %packed, i64 1
  %strides = getelementptr i64, ptr %extents, i64 %ndim
  br label %axes
axes:
  %axis = phi i64 [0, %entry], [%next, %add]
  %low = phi i64 [%data, %entry], [%lower, %add]
  %high = phi i64 [%data_end, %entry], [%higher, %add]
  %more = icmp slt i64 %axis, %ndim
  br i1 %more, label %look, label %full
look:
  %extent_at = getelementptr i64, ptr %extents, i64 %axis
  %extent = load i64, ptr %extent_at
  %empty = icmp eq i64 %extent, 0
  br i1 %empty, label %nothing, label %add
add:
  %stride_at = getelementptr i64, ptr %strides, i64 %axis
  %stride = load i64, ptr %stride_at
  %last = sub i64 %extent, 1
  %way = mul i64 %last, %stride
  %back = call i64 @llvm.smin.i64(i64 %way, i64 0)
  %forth = call i64 @llvm.smax.i64(i64 %way, i64 0)
  %lower = add i64 %low, %back
  %higher = add i64 %high, %forth
  %next = add i64 %axis, 1
  br label %axes
full:
  store i64 %low, ptr %range
  store i64 %high, ptr %end_at
  ret void
nothing:                                ; overlaps no range: it ends before any begins
  store i64 0, ptr %range
  store i64 0, ptr %end_at
  ret void
}

; Does a written array overlap another?
define internal i1 @overlap(ptr %ranges, i64 %count) {
entry:
  br label %outer
outer:
  %i = phi i64 [0, %entry], [%i_next, %outer_next]
  %i_more = icmp ult i64 %i, %count
  br i1 %i_more, label %outer_look, label %no
outer_look:
  %a = getelementptr %Range, ptr %ranges, i64 %i
  %a_end_at = getelementptr %Range, ptr %a, i32 0, i32 1
  %a_written_at = getelementptr %Range, ptr %a, i32 0, i32 2
  %a_first = load i64, ptr %a
  %a_end = load i64, ptr %a_end_at
  %a_written = load i64, ptr %a_written_at
  %read_only = icmp eq i64 %a_written, 0
  br i1 %read_only, label %outer_next, label %inner
inner:
  %j = phi i64 [0, %outer_look], [%j_next, %inner_next]
  %j_more = icmp ult i64 %j, %count
  br i1 %j_more, label %inner_look, label %outer_next
inner_look:
  %b = getelementptr %Range, ptr %ranges, i64 %j
  %b_end_at = getelementptr %Range, ptr %b, i32 0, i32 1
  %b_first = load i64, ptr %b
  %b_end = load i64, ptr %b_end_at
  %other = icmp ne i64 %i, %j
  %before = icmp ult i64 %a_first, %b_end
  %after = icmp ult i64 %b_first, %a_end
  %both = and i1 %before, %after
  %bad = and i1 %both, %other
  br i1 %bad, label %yes, label %inner_next
inner_next:
  %j_next = add i64 %j, 1
  br label %inner
outer_next:
  %i_next = add i64 %i, 1
  br label %outer
yes:
  ret i1 true
no:
  ret i1 false
}

; Do the captured variables still hold what the kernel was compiled for?
define internal i1 @unchanged(ptr %guards, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %same]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %yes
look:
  %guard = getelementptr %Guard, ptr %guards, i64 %i
  %where_at = getelementptr %Guard, ptr %guard, i32 0, i32 1
  %key_at = getelementptr %Guard, ptr %guard, i32 0, i32 2
  %expected_at = getelementptr %Guard, ptr %guard, i32 0, i32 3
  %cell = load i64, ptr %guard
  %where = load ptr, ptr %where_at
  %key = load ptr, ptr %key_at
  %expected = load ptr, ptr %expected_at
  %is_cell = icmp ne i64 %cell, 0
  br i1 %is_cell, label %in_cell, label %in_dictionary
in_cell:
  %content_at = getelementptr i8, ptr %where, i64 ${CELL_CONTENT}
  %content = load ptr, ptr %content_at
  br label %compare
in_dictionary:
  %item = call ptr @PyDict_GetItem(ptr %where, ptr %key)
  br label %compare
compare:
  %found = phi ptr [%content, %in_cell], [%item, %in_dictionary]
  %equal = icmp eq ptr %found, %expected
  br i1 %equal, label %same, label %no
same:
  %next = add i64 %i, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; The builtin (METH_FASTCALL | METH_KEYWORDS). `self` is a tuple whose first item is the array that
; holds the plan; the other items are kept alive by it.
define ptr @launcher(ptr %self, ptr %arguments, i64 %given, ptr %keywords) {
entry:
  %overflow = alloca i32
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %plan_at = getelementptr i8, ptr %holder, i64 ${ARRAY_DATA}
  %plan = load ptr, ptr %plan_at
  %fallback_at = getelementptr %Plan, ptr %plan, i32 0, i32 6
  %after_at = getelementptr %Plan, ptr %plan, i32 0, i32 7
  %rows_at = getelementptr %Plan, ptr %plan, i32 0, i32 8
  %guards_at = getelementptr %Plan, ptr %plan, i32 0, i32 9
  %words_at = getelementptr %Plan, ptr %plan, i32 0, i32 10
  %no_alias_at = getelementptr %Plan, ptr %plan, i32 0, i32 11
  %first_row_at = getelementptr %Plan, ptr %plan, i32 0, i32 12
  %first_guard_at = getelementptr %Plan, ptr %plan, i32 0, i32 13
  %header = getelementptr %Plan, ptr %plan, i32 0, i32 14
  %rows = load i64, ptr %rows_at
  %named = icmp ne ptr %keywords, null
  %wrong_number = icmp ne i64 %given, %rows
  %strange = or i1 %named, %wrong_number
  br i1 %strange, label %fall_back, label %guard
guard:
  %guards = load i64, ptr %guards_at
  %first_guard = load ptr, ptr %first_guard_at
  %unchanged = call i1 @unchanged(ptr %first_guard, i64 %guards)
  br i1 %unchanged, label %begin, label %fall_back
begin:
  %words = load i64, ptr %words_at
  %block = alloca i64, i64 %words, align 16
  %no_alias = load i64, ptr %no_alias_at
  %checked = icmp ne i64 %no_alias, 0
  %range_count = select i1 %checked, i64 %rows, i64 1
  %ranges = alloca %Range, i64 %range_count
  %first_row = load ptr, ptr %first_row_at
  br label %copy_header
copy_header:
  %h = phi i64 [0, %begin], [%h_next, %copy_header]
  %h_from = getelementptr i64, ptr %header, i64 %h
  %h_to = getelementptr i64, ptr %block, i64 %h
  %h_word = load i64, ptr %h_from
  store i64 %h_word, ptr %h_to
  %h_next = add i64 %h, 1
  %h_more = icmp ult i64 %h_next, ${HEADER}
  br i1 %h_more, label %copy_header, label %start_rows
start_rows:
  %to0 = getelementptr i64, ptr %block, i64 ${HEADER}
  br label %each

; -- the arguments
each:
  %i = phi i64 [0, %start_rows], [%i_next, %stored]
  %to = phi ptr [%to0, %start_rows], [%to_next, %stored]
  %arrays = phi i64 [0, %start_rows], [%arrays_next, %stored]
  %more = icmp ult i64 %i, %rows
  br i1 %more, label %look, label %packed
look:
  %row = getelementptr %Row, ptr %first_row, i64 %i
  %object_at = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object_at
  %type_of_row_at = getelementptr %Row, ptr %row, i32 0, i32 1
  %offset_at = getelementptr %Row, ptr %row, i32 0, i32 2
  %type_of_row = load ptr, ptr %type_of_row_at
  %type_at = getelementptr i8, ptr %object, i64 ${OBJECT_TYPE}
  %type = load ptr, ptr %type_at
  %same_type = icmp eq ptr %type, %type_of_row
  %any_type = icmp eq ptr %type_of_row, null
  %right_type = or i1 %same_type, %any_type
  br i1 %right_type, label %which, label %fall_back
which:
  %what = load i64, ptr %row
  %offset = load i64, ptr %offset_at
  %value_at = getelementptr i8, ptr %object, i64 %offset
  switch i64 %what, label %fall_back [
    i64 ${ARRAY}, label %an_array
    i64 ${PYTHON_INT}, label %an_int
    i64 ${BOOL}, label %a_bool
    i64 ${SIGNED_8}, label %s8
    i64 ${SIGNED_16}, label %s16
    i64 ${SIGNED_32}, label %s32
    i64 ${BITS_8}, label %b8
    i64 ${BITS_16}, label %b16
    i64 ${BITS_32}, label %b32
    i64 ${BITS_64}, label %b64
    i64 ${BITS_128}, label %b128
  ]
an_array:
  %fits = call i1 @array(ptr %object, ptr %row, ptr %to)
  br i1 %fits, label %array_range, label %fall_back
array_range:
  %ndim_at = getelementptr %Row, ptr %row, i32 0, i32 3
  %ndim = load i64, ptr %ndim_at
  %axis_words = shl i64 %ndim, 1
  %array_words = add i64 %axis_words, 1
  %to_after_array = getelementptr i64, ptr %to, i64 %array_words
  br i1 %checked, label %note_range, label %stored
note_range:
  %range = getelementptr %Range, ptr %ranges, i64 %arrays
  call void @range(ptr %to, ptr %row, ptr %range)
  %one_more = add i64 %arrays, 1
  br label %stored
an_int:
  %least_at = getelementptr %Row, ptr %row, i32 0, i32 9
  %greatest_at = getelementptr %Row, ptr %row, i32 0, i32 10
  %least = load i64, ptr %least_at
  %greatest = load i64, ptr %greatest_at
  %int = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %over = load i32, ptr %overflow
  %in_64 = icmp eq i32 %over, 0
  %not_less = icmp sge i64 %int, %least
  %not_greater = icmp sle i64 %int, %greatest
  %inside = and i1 %not_less, %not_greater
  %int_good = and i1 %inside, %in_64
  br i1 %int_good, label %store, label %fall_back
a_bool:
  %true = load ptr, ptr @true
  %false = load ptr, ptr @false
  %numpy_true = load ptr, ptr @numpy_true
  %numpy_false = load ptr, ptr @numpy_false
  %is_true = icmp eq ptr %object, %true
  %is_false = icmp eq ptr %object, %false
  %is_numpy_true = icmp eq ptr %object, %numpy_true
  %is_numpy_false = icmp eq ptr %object, %numpy_false
  %yes = or i1 %is_true, %is_numpy_true
  %no = or i1 %is_false, %is_numpy_false
  %bool = zext i1 %yes to i64
  %is_bool = or i1 %yes, %no
  br i1 %is_bool, label %store, label %fall_back
s8:
  %s8_value = load i8, ptr %value_at
  %s8_word = sext i8 %s8_value to i64
  br label %store
s16:
  %s16_value = load i16, ptr %value_at
  %s16_word = sext i16 %s16_value to i64
  br label %store
s32:
  %s32_value = load i32, ptr %value_at
  %s32_word = sext i32 %s32_value to i64
  br label %store
b8:
  %b8_value = load i8, ptr %value_at
  %b8_word = zext i8 %b8_value to i64
  br label %store
b16:
  %b16_value = load i16, ptr %value_at
  %b16_word = zext i16 %b16_value to i64
  br label %store
b32:
  %b32_value = load i32, ptr %value_at
  %b32_word = zext i32 %b32_value to i64
  br label %store
b64:
  %b64_word = load i64, ptr %value_at
  br label %store
b128:                                   ; complex128: the real part, then the imaginary part
  %real = load i64, ptr %value_at
  store i64 %real, ptr %to
  %imaginary_at = getelementptr i64, ptr %value_at, i64 1
  %imaginary = load i64, ptr %imaginary_at
  %to_imaginary = getelementptr i64, ptr %to, i64 1
  store i64 %imaginary, ptr %to_imaginary
  %to_after_pair = getelementptr i64, ptr %to, i64 2
  br label %stored
store:
  %word = phi i64 [%int, %an_int], [%bool, %a_bool], [%s8_word, %s8], [%s16_word, %s16],
                  [%s32_word, %s32], [%b8_word, %b8], [%b16_word, %b16], [%b32_word, %b32],
                  [%b64_word, %b64]
  store i64 %word, ptr %to
  %to_after_word = getelementptr i64, ptr %to, i64 1
  br label %stored
stored:
  %to_next = phi ptr [%to_after_array, %array_range], [%to_after_array, %note_range],
                     [%to_after_pair, %b128], [%to_after_word, %store]
  %arrays_next = phi i64 [%arrays, %array_range], [%one_more, %note_range],
                         [%arrays, %b128], [%arrays, %store]
  %i_next = add i64 %i, 1
  br label %each

; -- the launch
packed:
  br i1 %checked, label %check_alias, label %run
check_alias:
  %overlap = call i1 @overlap(ptr %ranges, i64 %arrays)
  br i1 %overlap, label %fall_back, label %run
run:
  %body_at = getelementptr %Plan, ptr %plan, i32 0, i32 1
  %count_at = getelementptr %Plan, ptr %plan, i32 0, i32 2
  %chunk_at = getelementptr %Plan, ptr %plan, i32 0, i32 3
  %threads_at = getelementptr %Plan, ptr %plan, i32 0, i32 4
  %slow = getelementptr %Plan, ptr %plan, i32 0, i32 5
  %launch_word = load i64, ptr %plan
  %launch = inttoptr i64 %launch_word to ptr
  %body = load i64, ptr %body_at
  %count = load i64, ptr %count_at
  %chunk = load i64, ptr %chunk_at
  %threads = load i64, ptr %threads_at
  %block_word = ptrtoint ptr %block to i64
  %failed = call i32 %launch(i64 %body, i64 %block_word, i64 %count, i64 %chunk, i64 %threads,
                             ptr %slow)
  %good = icmp eq i32 %failed, 0
  br i1 %good, label %reports, label %raised
reports:
  %after = load ptr, ptr %after_at
  %watched = icmp ne ptr %after, null
  br i1 %watched, label %look_at_report, label %done
look_at_report:
  %report_at = getelementptr i64, ptr %header, i64 ${REPORT}
  %report = load ptr, ptr %report_at
  %report_word = load i64, ptr %report
  %quiet = icmp eq i64 %report_word, 0
  br i1 %quiet, label %done, label %call_after
call_after:
  %answer = call ptr @PyObject_Vectorcall(ptr %after, ptr null, i64 0, ptr null)
  ret ptr %answer
done:
  %none = load ptr, ptr @none
  call void @Py_IncRef(ptr %none)
  ret ptr %none
raised:
  ret ptr null
fall_back:
  %fallback = load ptr, ptr %fallback_at
  %result = call ptr @PyObject_Vectorcall(ptr %fallback, ptr %arguments, i64 %given, ptr %keywords)
  ret ptr %result
}
