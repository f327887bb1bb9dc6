; Tiles of matrix products, as items of the thread pool. `cpu_blas.py` explains it and fills in the
; library's type of integers.
;
; The block: 0 cblas_?gemm  1 m  2 n  3 k  4 rows of a tile  5 columns of a tile  6 tiles across
; 7 tiles of a product  8 9 whether x, y lie transposed  10 11 12 elements from line to line of x, y,
; out  13 bytes from row to row of x  14 from column to column of y  15 of an element
; 16... for each product the addresses of x, y and out

declare i64 @llvm.smin.i64(i64, i64)

define internal i64 @word(i64 %block, i64 %k) {
  %bytes = shl i64 %k, 3
  %at = add i64 %block, %bytes
  %pointer = inttoptr i64 %at to ptr
  %value = load i64, ptr %pointer
  ret i64 %value
}

define internal void @tile(i64 %block, i64 %item, i1 %double) {
entry:
  %function = call i64 @word(i64 %block, i64 0)
  %m = call i64 @word(i64 %block, i64 1)
  %n = call i64 @word(i64 %block, i64 2)
  %k = call i64 @word(i64 %block, i64 3)
  %tall = call i64 @word(i64 %block, i64 4)
  %wide = call i64 @word(i64 %block, i64 5)
  %across = call i64 @word(i64 %block, i64 6)
  %tiles = call i64 @word(i64 %block, i64 7)
  %left_turned = call i64 @word(i64 %block, i64 8)
  %right_turned = call i64 @word(i64 %block, i64 9)
  %left_line = call i64 @word(i64 %block, i64 10)
  %right_line = call i64 @word(i64 %block, i64 11)
  %out_line = call i64 @word(i64 %block, i64 12)
  %row_bytes = call i64 @word(i64 %block, i64 13)
  %column_bytes = call i64 @word(i64 %block, i64 14)
  %size = call i64 @word(i64 %block, i64 15)
  %product = udiv i64 %item, %tiles
  %number = urem i64 %item, %tiles
  %down = udiv i64 %number, %across
  %aside = urem i64 %number, %across
  %row = mul i64 %down, %tall
  %column = mul i64 %aside, %wide
  %rows_left = sub i64 %m, %row
  %columns_left = sub i64 %n, %column
  %rows = call i64 @llvm.smin.i64(i64 %rows_left, i64 %tall)
  %columns = call i64 @llvm.smin.i64(i64 %columns_left, i64 %wide)
  %thrice = mul i64 %product, 3
  %x_word = add i64 %thrice, 16
  %y_word = add i64 %thrice, 17
  %out_word = add i64 %thrice, 18
  %x0 = call i64 @word(i64 %block, i64 %x_word)
  %y0 = call i64 @word(i64 %block, i64 %y_word)
  %out0 = call i64 @word(i64 %block, i64 %out_word)
  %x_offset = mul i64 %row, %row_bytes
  %y_offset = mul i64 %column, %column_bytes
  %lines = mul i64 %row, %out_line
  %place = add i64 %lines, %column
  %out_offset = mul i64 %place, %size
  %x1 = add i64 %x0, %x_offset
  %y1 = add i64 %y0, %y_offset
  %out1 = add i64 %out0, %out_offset
  %x = inttoptr i64 %x1 to ptr
  %y = inttoptr i64 %y1 to ptr
  %out = inttoptr i64 %out1 to ptr
  %is_left = icmp ne i64 %left_turned, 0
  %is_right = icmp ne i64 %right_turned, 0
  %left = select i1 %is_left, i32 112, i32 111                  ; CblasTrans, CblasNoTrans
  %right = select i1 %is_right, i32 112, i32 111
  %gemm = inttoptr i64 %function to ptr
  %m_ = ${CUT} i64 %rows to ${INT}
  %n_ = ${CUT} i64 %columns to ${INT}
  %k_ = ${CUT} i64 %k to ${INT}
  %x_line = ${CUT} i64 %left_line to ${INT}
  %y_line = ${CUT} i64 %right_line to ${INT}
  %line = ${CUT} i64 %out_line to ${INT}
  br i1 %double, label %wide_numbers, label %numbers
numbers:                                                        ; 101: rows lie together
  call void %gemm(i32 101, i32 %left, i32 %right, ${INT} %m_, ${INT} %n_, ${INT} %k_, float 1.0,
                  ptr %x, ${INT} %x_line, ptr %y, ${INT} %y_line, float 0.0, ptr %out, ${INT} %line)
  ret void
wide_numbers:
  call void %gemm(i32 101, i32 %left, i32 %right, ${INT} %m_, ${INT} %n_, ${INT} %k_, double 1.0,
                  ptr %x, ${INT} %x_line, ptr %y, ${INT} %y_line, double 0.0, ptr %out,
                  ${INT} %line)
  ret void
}

define i32 @tiles(ptr %result, ptr %watch, i64 %block, i64 %lo, i64 %hi) {
entry:
  %size = call i64 @word(i64 %block, i64 15)
  %double = icmp eq i64 %size, 8
  br label %next
next:
  %item = phi i64 [%lo, %entry], [%after, %on]
  %left = icmp slt i64 %item, %hi
  br i1 %left, label %on, label %out
on:
  call void @tile(i64 %block, i64 %item, i1 %double)
  %after = add i64 %item, 1
  br label %next
out:
  ret i32 0
}
