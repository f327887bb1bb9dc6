// Buffers, queues, flags and barriers of the vector core, and a launch over blocks.
#include "vector_state.h"

namespace twin {

// ---- buffers and queues ----

uint64_t view_bytes(const View& view) {
    const Buffer& b = unit().buffers.at(view.buffer);
    return b.begin + b.bytes - uint64_t(view.offset);
}

void open_pipe() {
    Unit& u = unit();
    if (u.open_pipes) fail("queue", "a second TPipe while there is one");
    u.open_pipes = 1;
}

void close_pipe() noexcept {
    Unit& u = *static_cast<Unit*>(block().unit);
    for (Buffer& b : u.buffers) {
        if (b.state != State::free && b.state != State::fixed && !u.leak_line) {
            u.leak_line = b.line;
            u.leak_state = b.state;
        }
        b.state = State::free;
        ++b.generation;
    }
    for (auto& row : u.flags)
        for (auto& kind : row)
            for (Flag& f : kind)
                if (f.owned) f = Flag{};  // closing waits for the buffers that were given back
    for (int p = 0; p < pipes; ++p) u.ordered[p] = Clocks{{u.clock, u.clock, u.clock, u.clock}};
    u.used = 0;
    u.open_pipes = 0;
}

int32_t make_buffer(Line line, Position position, uint32_t bytes) {
    enter("InitBuffer", line);
    Unit& u = unit();
    uint32_t length = round_up(bytes);
    if (!bytes) fail("range", "a buffer of 0 bytes");
    if (uint64_t(u.used) + length > UB)
        fail("capacity", "needs %u bytes of unified buffer with what is taken; there are %u", u.used + length, UB);
    if (u.buffers.size() >= BUFFERS) fail("capacity", "more than %u buffers", BUFFERS);
    u.buffers.push_back({u.used, length, State::fixed, position});
    u.buffers.back().line = line;
    u.used += length;
    u.most_used = std::max(u.most_used, u.used);
    return int32_t(u.buffers.size() - 1);
}

int32_t make_queue(Line line, Position position, int depth, uint32_t buffers, uint32_t bytes) {
    enter("InitBuffer", line);
    Unit& u = unit();
    uint32_t total = buffers;
    for (const Queue& q : u.queues) total += q.position == position ? q.buffers : 0;
    if (!buffers) fail("range", "a queue without buffers");
    if (total > QUEUE_BUFFERS)
        fail("capacity", "%u buffers in the queues of one position; there are events for %u", total, QUEUE_BUFFERS);
    Queue q{position, depth, int32_t(u.buffers.size()), buffers, 0, {}};
    for (uint32_t i = 0; i < buffers; ++i) {
        Buffer& b = u.buffers[make_buffer(line, position, bytes)];
        b.state = State::free;
        b.queue = int32_t(u.queues.size());
    }
    u.queues.push_back(q);
    return int32_t(u.queues.size() - 1);
}

View whole_buffer(Line line, int32_t buffer) {
    enter("Get", line);
    Unit& u = unit();
    if (buffer < 0) fail("queue", "a TBuf without InitBuffer");
    return {u.buffers[buffer].begin, buffer, u.buffers[buffer].generation};
}

namespace {

Queue& queue_of(Unit& u, int32_t queue) {
    if (queue < 0) fail("queue", "a TQue without InitBuffer");
    return u.queues[queue];
}

// Who fills a queue's buffers, who empties them; a queue of VECCALC is within the vector pipe.
Pipe producer(Position p) { return p == Position::in ? mte2 : vector; }
Pipe consumer(Position p) { return p == Position::out ? mte3 : vector; }

Buffer& own_buffer(Unit& u, int32_t queue, const View& view) {
    queue_of(u, queue);
    if (view.buffer < 0) fail("queue", "a tensor that no queue gave");
    Buffer& b = u.buffers[view.buffer];
    if (b.queue != queue) fail("queue", "a tensor of another queue");
    if (b.generation != view.generation) fail("queue", "a tensor of an earlier AllocTensor");
    return b;
}

}  // namespace

View allocate(Line line, int32_t queue) {
    enter("AllocTensor", line);
    Unit& u = unit();
    Queue& q = queue_of(u, queue);
    for (uint32_t i = 0; i < q.buffers; ++i) {
        int32_t index = q.first + int32_t((q.cursor + i) % q.buffers);
        Buffer& b = u.buffers[index];
        if (b.state != State::free) continue;
        q.cursor = (q.cursor + i + 1) % q.buffers;
        if (b.event >= 0) {
            Pipe from = consumer(q.position), to = producer(q.position);
            wait(u, to, u.flags[from][to][b.event].clocks);
            u.flags[from][to][b.event] = Flag{};
            b.event = -1;
        }
        b.state = State::allocated;
        b.line = line;
        ++b.generation;
        memset(&u.bytes[b.begin], 0xFD, b.bytes);
        define(u, b.begin, b.bytes, false);
        return {b.begin, index, b.generation};
    }
    fail("queue", "no buffer of the queue is free (%u in all): a FreeTensor is missing; a chip hangs", q.buffers);
}

namespace {

int take_event(Unit& u, Pipe from, Pipe to, bool keep) {
    for (int id = 0; id < EVENTS; ++id) {
        Flag& f = u.flags[from][to][id];
        if (f.owned) continue;
        if (keep) f.owned = true;
        return id;
    }
    fail("flag", "all %d flags from the %s to the %s pipe are in use", EVENTS, PIPE[from], PIPE[to]);
}

void queue_flag(Unit& u, Buffer& b, Pipe from, Pipe to, Line line) {
    if (from == to) return;  // VECCALC: nothing is ordered by such a queue
    b.event = take_event(u, from, to, true);
    Flag& f = u.flags[from][to][b.event];
    if (f.set)
        fail("flag", "the queue's flag %d from the %s to the %s pipe was set by SetFlag at line %u of the text: take ids "
             "from AllocEventID or FetchEventID", b.event, PIPE[from], PIPE[to], f.line);
    f.set = true;
    f.line = line;
    f.clocks = snapshot(u, from);
}

}  // namespace

void enqueue(Line line, int32_t queue, const View& view) {
    enter("EnQue", line);
    Unit& u = unit();
    Buffer& b = own_buffer(u, queue, view);
    Queue& q = u.queues[queue];
    if (b.state != State::allocated) fail("queue", "a tensor that is %s, not allocated", STATE[int(b.state)]);
    if (q.waiting.size() >= size_t(q.depth)) fail("queue", "more tensors than the queue's depth of %d", q.depth);
    b.state = State::queued;
    b.line = line;
    queue_flag(u, b, producer(q.position), consumer(q.position), line);
    q.waiting.push_back(view.buffer);
}

View dequeue(Line line, int32_t queue) {
    enter("DeQue", line);
    Unit& u = unit();
    Queue& q = queue_of(u, queue);
    if (q.waiting.empty()) fail("queue", "an empty queue; a chip hangs");
    int32_t index = q.waiting.front();
    q.waiting.erase(q.waiting.begin());
    Buffer& b = u.buffers[index];
    b.state = State::dequeued;
    b.line = line;
    if (b.event >= 0) {
        Pipe from = producer(q.position), to = consumer(q.position);
        wait(u, to, u.flags[from][to][b.event].clocks);
        u.flags[from][to][b.event] = Flag{};
        b.event = -1;
    }
    return {b.begin, index, b.generation};
}

void release(Line line, int32_t queue, const View& view) {
    enter("FreeTensor", line);
    Unit& u = unit();
    Buffer& b = own_buffer(u, queue, view);
    Queue& q = u.queues[queue];
    if (b.state != State::dequeued && b.state != State::allocated)
        fail("queue", "a tensor that is %s (since line %u of the text)", STATE[int(b.state)], b.line);
    b.state = State::free;
    b.line = line;
    queue_flag(u, b, consumer(q.position), producer(q.position), line);
}

int32_t queued(int32_t queue) { return int32_t(queue_of(unit(), queue).waiting.size()); }

void read_scalar(Line line, const View& view, int64_t index, uint32_t size, void* value) {
    enter("GetValue", line).counts.scalar_reads++;
    Unit& u = unit();
    View at = view;
    at.offset += index * size;
    uint32_t place = place_of(u, at, size, "source");
    touch(u, place, size, scalar, false);
    need_defined(u, place, size, "source");
    memcpy(value, &u.bytes[place], size);
}

void write_scalar(Line line, const View& view, int64_t index, uint32_t size, const void* value) {
    enter("SetValue", line).counts.scalar_writes++;
    Unit& u = unit();
    View at = view;
    at.offset += index * size;
    uint32_t place = place_of(u, at, size, "destination");
    touch(u, place, size, scalar, true);
    memcpy(&u.bytes[place], value, size);
    define(u, place, size);
}

// ---- order ----

void barrier(Line line, int pipe) {
    enter("PipeBarrier", line).counts.barriers++;
    Unit& u = unit();
    if (pipe == pipes) {
        for (auto& o : u.ordered) o = Clocks{{u.clock, u.clock, u.clock, u.clock}};
    } else {
        u.ordered[pipe].of[pipe] = u.clock;
    }
}

namespace {

Flag& flag(Unit& u, Pipe from, Pipe to, int id) {
    if (id < 0 || id >= EVENTS) fail("flag", "event id %d; there are 0 to %d", id, EVENTS - 1);
    return u.flags[from][to][id];
}

}  // namespace

void set_flag(Line line, Pipe from, Pipe to, int id) {
    enter("SetFlag", line).counts.flags++;
    Unit& u = unit();
    Flag& f = flag(u, from, to, id);
    if (f.set) fail("flag", "flag %d from the %s to the %s pipe is set already (at line %u of the text)", id, PIPE[from],
                    PIPE[to], f.line);
    f.set = true;
    f.line = line;
    f.clocks = snapshot(u, from);
}

void wait_flag(Line line, Pipe from, Pipe to, int id) {
    enter("WaitFlag", line);
    Unit& u = unit();
    Flag& f = flag(u, from, to, id);
    if (!f.set) fail("flag", "flag %d from the %s to the %s pipe was not set; a chip hangs", id, PIPE[from], PIPE[to]);
    wait(u, to, f.clocks);
    f.set = false;
}

int allocate_event(Line line, Pipe from, Pipe to, bool keep) {
    enter(keep ? "AllocEventID" : "FetchEventID", line);
    return take_event(unit(), from, to, keep);
}

void release_event(Line line, Pipe from, Pipe to, int id) {
    enter("ReleaseEventID", line);
    Flag& f = flag(unit(), from, to, id);
    if (!f.owned) fail("flag", "event id %d was not allocated", id);
    if (f.set) fail("flag", "event id %d is still set (at line %u of the text)", id, f.line);
    f.owned = false;
}

// ---- a launch ----

namespace {

void check_end(Unit& u) {
    enter("end of the kernel", 0);
    if (u.leak_line) {
        enter("~TPipe", u.leak_line);
        fail("queue", "a tensor is still %s at the end of the kernel", STATE[int(u.leak_state)]);
    }
    for (int from = 0; from < pipes; ++from)
        for (int to = 0; to < pipes; ++to)
            for (int id = 0; id < EVENTS; ++id)
                if (const Flag& f = u.flags[from][to][id]; f.set) {
                    enter("SetFlag", f.line);
                    fail("flag", "nobody waits for flag %d from the %s to the %s pipe", id, PIPE[from], PIPE[to]);
                }
    if (u.atomic != Accumulate::none) {
        enter("SetAtomic", u.atomic_line);
        fail("atomic", "the atomic mode is on at the end of the kernel: SetAtomicNone");
    }
    for (auto& [address, c] : u.cache)
        if (c.any_dirty) {
            enter("GlobalTensor::SetValue", c.line);
            fail("cache", "the store is in the scalar unit's cache at the end of the kernel: DataCacheCleanAndInvalid");
        }
}

void check_lines(Unit& u, Shared& shared) {
    std::lock_guard<std::mutex> lock(shared.mutex);
    uint32_t id = block().id;
    for (uint64_t line : u.dirtied) {
        auto [found, is_new] = shared.dirtied.try_emplace(line, id);
        if (!is_new && found->second != id)
            fail("cache", "blocks %u and %u store to one cache line of 64 bytes: one overwrites the other", found->second, id);
    }
    for (auto& range : u.copied_out) {
        shared.copied_out.push_back(range);
        shared.copied_by.push_back(id);
    }
    if (shared.dirtied.empty()) return;
    for (size_t i = 0; i < shared.copied_out.size(); ++i) {
        auto [begin, end] = shared.copied_out[i];
        auto at = shared.dirtied.lower_bound(begin / LINE * LINE);
        for (; at != shared.dirtied.end() && at->first < end; ++at)
            if (at->second != shared.copied_by[i])
                fail("cache", "block %u stores to a cache line of 64 bytes that block %u copies to: one overwrites the other",
                     at->second, shared.copied_by[i]);
    }
}

void run_one(void* data) {
    thread_local std::unique_ptr<Unit> mine;
    if (mine) mine->reset();
    else mine.reset(new Unit);
    block().unit = mine.get();
    Shared& shared = *static_cast<Shared*>(data);
    shared.body(shared.data);
    check_end(*mine);
    check_lines(*mine, shared);
}

}  // namespace

int launch_vector(void* stream, uint32_t blocks, void (*body)(void*), void* data) {
    Shared shared;
    shared.body = body;
    shared.data = data;
    return run_blocks(stream, blocks, run_one, &shared);
}

}  // namespace twin
