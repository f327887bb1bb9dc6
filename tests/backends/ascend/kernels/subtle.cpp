// Kernels that look wrong and are right, and that look right and are wrong, in the manner of wrong.cpp, whose head stands
// before this text. They came after the twin, from its rules alone.

// right: the order goes through the scalar unit, and is order all the same
KERNEL(through_the_scalar_unit) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(256), no_padding);
    SetFlag<HardEvent::MTE2_S>(EVENT_ID3);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID3);
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
    Adds(b.r, b.a, 1.0f, 64);
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
    SetFlag<HardEvent::S_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE3>(EVENT_ID0);
    if (GetBlockIdx() == 0) DataCopyPad(g.out, b.r, bytes_of(256));
}
// right: copies end in their order, so one flag behind the last stands for both
KERNEL(one_flag_for_two_copies) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(128), no_padding);
    DataCopyPad(b.a[32], g.y, bytes_of(128), no_padding);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    Adds(b.r, b.a, 1.0f, 64);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    if (GetBlockIdx() == 0) DataCopyPad(g.out, b.r, bytes_of(256));
}
// right: two halves of one buffer by turns, with a flag of its own for each, both ways
KERNEL(by_turns) {
    Buffers b;
    for (int k = 0; k < 2; ++k) SetFlag<HardEvent::V_MTE2>(k);
    for (int k = 0; k < 8; ++k) {
        const int half_of = k % 2;
        LocalTensor<float> part = b.a[32 * half_of], made = b.r[8 * k];
        WaitFlag<HardEvent::V_MTE2>(half_of);
        DataCopyPad(part, g.x[8 * k], bytes_of(32), no_padding);
        SetFlag<HardEvent::MTE2_V>(half_of);
        WaitFlag<HardEvent::MTE2_V>(half_of);
        Adds(made, part, 1.0f, 8);
        SetFlag<HardEvent::V_MTE2>(half_of);
    }
    for (int k = 0; k < 2; ++k) WaitFlag<HardEvent::V_MTE2>(k);
    SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
    if (GetBlockIdx() == 0) DataCopyPad(g.out, b.r, bytes_of(256));
}
// right: the gap behind the last row of a copy is not read, though it would lie outside
KERNEL(the_last_gap) {
    Buffers b;
    DataCopyPad(b.a, g.x, DataCopyExtParams{8, 4, 32, 0, 0}, DataCopyPadExtParams<float>{true, 0, 7, 0.0f});
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    Adds(b.r, b.a, 1.0f, 64);
    PipeBarrier<PIPE_ALL>();
    if (GetBlockIdx() == 0) DataCopyPad(g.out, b.r, bytes_of(256));
}
// right: what is written again has not to be ordered after reads of the same pipe
KERNEL(read_then_overwritten) {
    Buffers b;
    Duplicate(b.a, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Adds(b.w, b.a, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Exp(b.w, b.w, 64);
    Duplicate(b.a, 2.0f, 64);
    PipeBarrier<PIPE_V>();
    Add(b.r, b.a, b.w, 64);
    PipeBarrier<PIPE_ALL>();
    if (GetBlockIdx() == 0) DataCopyPad(g.out, b.r, bytes_of(256));
}

// breaks hazard: a barrier of the copies does not make the vector unit wait
KERNEL(barrier_of_another_pipe) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(256), no_padding);
    PipeBarrier<PIPE_MTE2>();
    PipeBarrier<PIPE_V>();
    Adds(b.r, b.a, 1.0f, 64);  // here
}
// breaks hazard: a barrier of the copies out does not wait for the scalar unit
KERNEL(scalar_store_behind_a_barrier) {
    Buffers b;
    for (int k = 0; k < 8; ++k) b.r.SetValue(k, 1.0f);
    PipeBarrier<PIPE_MTE3>();
    DataCopyPad(g.out, b.r, bytes_of(32));  // here
}
// breaks hazard: a flag that was set before the last copy says nothing of it
KERNEL(flag_set_too_early) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(128), no_padding);
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    DataCopyPad(b.a[32], g.y, bytes_of(128), no_padding);
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    Adds(b.r, b.a, 1.0f, 64);  // here
}
// breaks undefined: a copy of no bytes brings none
KERNEL(copy_of_nothing) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(0), no_padding);
    PipeBarrier<PIPE_ALL>();
    Adds(b.r, b.a, 1.0f, 8);  // here
}
// breaks undefined: without padding nobody knows what is behind a tail
KERNEL(rest_of_a_block) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(20), no_padding);
    PipeBarrier<PIPE_ALL>();
    Adds(b.r, b.a, 1.0f, 8);  // here
}
// breaks undefined: a mask has bits for the lanes that were compared
KERNEL(mask_of_half_the_lanes) {
    Buffers b;
    TBuf<TPosition::VECCALC> bits;
    b.pipe.InitBuffer(bits, 32);
    LocalTensor<uint8_t> mask = bits.Get<uint8_t>();
    LocalTensor<half> h = b.w.ReinterpretCast<half>(), made = b.r.ReinterpretCast<half>();
    Duplicate(b.a, 1.0f, 64);
    Duplicate(h, half(1.0f), 128);
    PipeBarrier<PIPE_V>();
    CompareScalar(mask, b.a, 0.0f, CMPMODE::GT, 64);
    PipeBarrier<PIPE_V>();
    Select(made, mask, h, half(0.0f), SELMODE::VSEL_TENSOR_SCALAR_MODE, 128);  // here
}
// breaks overlap: the halves of a row would be written over floats that are still to be read
KERNEL(narrowed_in_place) {
    Buffers b;
    Duplicate(b.a, 1.0f, 64);
    PipeBarrier<PIPE_V>();
    Cast(b.a[8].ReinterpretCast<half>(), b.a, RoundMode::CAST_RINT, 32);  // here
}
// breaks global-bounds: the second row of a copy is outside, the first is not
KERNEL(the_row_behind) {
    Buffers b;
    DataCopyPad(b.a, g.x, DataCopyExtParams{2, 128, 256, 0, 0}, no_padding);  // here
}
// breaks range: padding fills up to 32 bytes, not more
KERNEL(more_padding_than_a_block) {
    Buffers b;
    DataCopyPad(b.a, g.x, bytes_of(4), DataCopyPadExtParams<float>{true, 0, 9, 0.0f});  // here
}
// breaks buffer-bounds: rows with gaps go over the end of the buffer, though their bytes would fit
KERNEL(rows_with_gaps) {
    Buffers b;
    DataCopyPad(b.a, g.x, DataCopyExtParams{4, 32, 0, 2, 0}, no_padding);  // here
}
