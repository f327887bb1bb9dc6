// Runs the blocks of a SIMT kernel: threads of a block as coroutines of one thread of the host.
//
// Blocks go to several threads of the host in a random order. A kernel without barriers runs its
// threads one after another; else each has a stack, and gives way where it waits. All of that is
// deterministic but the order of blocks, whose seed is fixed: a kernel that depends on it is wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "fault.h"
#include "simt.h"

namespace simt {

__thread Here here;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr uint32_t WARP = 32;
constexpr int64_t SERIAL = 1 << 16;  // threads of a launch that are not worth another host thread

struct Launch {
    const int64_t *grid, *first, *words;
    bool meets;
    void (*body)(void*);
    void* data;
    std::vector<uint32_t> order;
    std::atomic<uint32_t> next{0};
    std::mutex lock;
    bool failed = false;
    twin::Fault fault{};
};

enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    jmp_buf context;
    State state;
    int line;
    bool started;
};

struct Worker {
    Launch* launch = nullptr;
    jmp_buf scheduler;
    jmp_buf stop;  // out of the block, after a fault
    uint32_t threads = 0, left = 0;
    Fiber* current = nullptr;
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    size_t stack_bytes = 0;
    std::vector<uint64_t> slots;    // two for each thread: lanes are at most one exchange apart
    std::vector<uint8_t> parity;
    std::unique_ptr<char[]> dynamic;
    std::vector<Cell> dynamic_cells;
    std::vector<uint32_t> phases;  // of each warp
    std::vector<uint16_t> fences;  // of each thread

    ~Worker() {
        if (stacks) munmap(stacks, stack_bytes);
    }
};

thread_local Worker worker;
thread_local twin::Fault last;  // of the newest launch of this thread
uint32_t most_threads = 0;

void place(uint32_t linear) {
    here.linear = linear;
    here.thread.x = linear % here.block_dim.x;
    here.thread.y = linear / here.block_dim.x % here.block_dim.y;
    here.thread.z = linear / (here.block_dim.x * here.block_dim.y);
    here.phase = worker.phases[linear / WARP];
    here.fence = worker.fences[linear];
}

void yield_to_scheduler() {
    if (!_setjmp(worker.current->context)) _longjmp(worker.scheduler, 1);
}

// What a stack runs: the same thread of one block after the other, as making a stack anew costs
// more than most kernels.
void start_fiber() {
    for (Worker& w = worker;;) {
        w.launch->body(w.launch->data);
        w.current->state = DONE;
        yield_to_scheduler();
    }
}

// Runs a fiber until it waits or ends.
void resume(Worker& w, uint32_t k) {
    Fiber& f = w.fibers[k];
    w.current = &f;
    place(k);
    if (_setjmp(w.scheduler)) return;
    if (f.started) _longjmp(f.context, 1);
    f.started = true;
    static thread_local ucontext_t fresh, unused;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = w.stacks + k * STACK;
    fresh.uc_stack.ss_size = STACK;
    fresh.uc_link = nullptr;
    makecontext(&fresh, start_fiber, 0);
    swapcontext(&unused, &fresh);
}

// Lets threads of a warp go on that have all come; `what` says where they wait.
bool release(Worker& w, uint32_t from, uint32_t to, State what) {
    int line = 0;
    bool found = false;
    for (uint32_t k = from; k < to; ++k) {
        Fiber& f = w.fibers[k];
        if (f.state == READY) return false;
        if (f.state == what) {
            if (found && line != f.line) {
                place(k);
                fault("barrier", f.line, "threads wait at different barriers: lines %lld and %lld", line,
                      f.line);
            }
            found = true;
            line = f.line;
        }
    }
    if (!found) return false;
    for (uint32_t k = from; k < to; ++k)
        if (w.fibers[k].state != what) {
            place(k);
            fault("barrier", line, "thread %lld does not come to the barrier that others wait at", k);
        }
    for (uint32_t k = from; k < to; ++k) w.fibers[k].state = READY;
    if (what == AT_BLOCK) ++here.epoch;
    else ++w.phases[from / WARP];
    return true;
}

void run_fibers(Worker& w) {
    uint32_t n = w.threads;
    if (w.fibers.size() < n) {
        w.fibers.resize(n);
        w.slots.resize(2 * n);
        w.parity.resize(n);
    }
    if (w.stack_bytes < n * STACK) {
        if (w.stacks) munmap(w.stacks, w.stack_bytes);
        w.stack_bytes = n * STACK;
        void* found = mmap(nullptr, w.stack_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        w.stacks = found == MAP_FAILED ? nullptr : static_cast<char*>(found);
        for (Fiber& f : w.fibers) f.started = false;
        if (!w.stacks) {
            w.stack_bytes = 0;
            fault("twin", 0, "no memory for the stacks of %lld threads", n);
        }
    }
    for (uint32_t k = 0; k < n; ++k) w.fibers[k].state = READY, w.parity[k] = 0;
    for (bool forward = true;; forward = !forward) {
        bool ran = false, all_done = true;
        for (uint32_t j = 0; j < n; ++j) {
            uint32_t k = forward ? j : n - 1 - j;
            if (w.fibers[k].state == READY) {
                resume(w, k);
                ran = true;
            }
            all_done &= w.fibers[k].state == DONE;
        }
        if (all_done) return;
        bool released = false;
        for (uint32_t from = 0; from < n; from += WARP)
            released |= release(w, from, std::min(from + WARP, n), AT_WARP);
        if (!released) released = release(w, 0, n, AT_BLOCK);
        if (!released && !ran) fault("barrier", 0, "threads wait at a barrier for ever");
    }
}

void run_block(Launch& l, uint32_t number) {
    Worker& w = worker;
    const int64_t* n = l.words;
    here.grid_dim = {uint32_t(l.grid[0]), uint32_t(l.grid[1]), uint32_t(l.grid[2])};
    here.block_dim = {uint32_t(n[3]), uint32_t(n[4]), uint32_t(n[5])};
    here.block = {number % here.grid_dim.x, number / here.grid_dim.x % here.grid_dim.y,
                  number / (here.grid_dim.x * here.grid_dim.y)};
    w.launch = &l;
    w.threads = here.block_dim.x * here.block_dim.y * here.block_dim.z;
    ++here.epoch;
    if (w.fences.size() < w.threads) {
        w.fences.resize(w.threads);
        w.phases.resize(w.threads / WARP + 1);
    }
    if (n[7]) {
        if (int64_t(w.dynamic_cells.size()) < n[7]) w.dynamic_cells.resize(n[7]);
        w.dynamic.reset(new char[n[7] + 8]);
        memset(w.dynamic.get(), 0xFD, n[7] + 8);
    }
    if (_setjmp(w.stop)) {
        for (Fiber& f : w.fibers) f.started = false;  // they stand where the fault found them
        return;
    }
    if (l.meets) {
        run_fibers(w);
    } else {
        for (uint32_t k = 0; k < w.threads; ++k) {
            place(k);
            l.body(l.data);
        }
    }
}

void work(Launch* l) {
    for (;;) {
        uint32_t k = l->next++;
        if (k >= l->order.size()) return;
        run_block(*l, l->order[k]);
    }
}

}  // namespace

void fault(const char* rule, int line, const char* format, long long a, long long b) {
    Launch& l = *worker.launch;
    {
        std::lock_guard<std::mutex> hold(l.lock);
        if (!l.failed) {
            l.failed = true;
            l.next = uint32_t(l.order.size());
            snprintf(l.fault.rule, sizeof l.fault.rule, "%s", rule);
            snprintf(l.fault.message, sizeof l.fault.message, format, a, b);
            l.fault.line = uint32_t(line);
            const Dim block = here.block, thread = here.thread;
            const uint32_t at[] = {block.x, block.y, block.z}, of[] = {thread.x, thread.y, thread.z};
            for (int k = 0; k < 3; ++k) {
                l.fault.block[k] = uint32_t(l.first[k]) + at[k];
                l.fault.thread[k] = int32_t(of[k]);
            }
        }
    }
    _longjmp(worker.stop, 1);
}

// Returns where a fence of the other thread has ordered its access.
void race(const Stamp& other, Access mine, Access theirs, int64_t index, int line) {
    if (worker.fences[other.thread] != other.fence) return;
    static const char* const verbs[] = {"reads", "writes", "updates"};
    const uint32_t k = other.thread, x = here.block_dim.x, y = here.block_dim.y;
    char message[sizeof(twin::Fault::message)];
    snprintf(message, sizeof message,
             "data race on element %lld of shared memory: this thread %s it, thread (%u, %u, %u) of "
             "the same block %s it%s at line %u of the generated text, with no barrier between",
             static_cast<long long>(index), verbs[mine], k % x, k / x % y, k / (x * y), verbs[theirs],
             theirs == UPDATE ? " atomically" : "", other.line);
    fault("race", line, message);
}

void fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    here.fence = ++worker.fences[here.linear];
}

void wait_block(int line) {
    if (!worker.launch->meets) fault("barrier", line, "a barrier in a kernel that was said to have none");
    worker.current->state = AT_BLOCK;
    worker.current->line = line;
    yield_to_scheduler();
}

uint64_t* lanes(int line, uint64_t x) {
    Worker& w = worker;
    if (!w.launch->meets) fault("barrier", line, "an exchange in a kernel that was said to have none");
    uint32_t k = here.linear;
    w.parity[k] ^= 1;
    uint64_t* row = w.slots.data() + w.parity[k] * w.threads;
    row[k] = x;
    w.current->state = AT_WARP;
    w.current->line = line;
    yield_to_scheduler();
    return row + k / WARP * WARP;
}

uint32_t lanes_there() { return std::min(WARP, worker.threads - here.linear / WARP * WARP); }

char* dynamic_memory() {
    char* start = worker.dynamic.get();
    return start + (-reinterpret_cast<uintptr_t>(start) & 7);
}

Cell* dynamic_cells() { return worker.dynamic_cells.data(); }

int64_t dynamic_bytes() { return worker.launch->words[7]; }

int32_t run(const int64_t* grid, const int64_t* first, const int64_t* words, bool meets,
            void (*body)(void*), void* data) {
    Launch l;
    l.grid = grid, l.first = first, l.words = words, l.meets = meets, l.body = body, l.data = data;
    uint32_t blocks = uint32_t(grid[0] * grid[1] * grid[2]);
    l.order.resize(blocks);
    for (uint32_t k = 0; k < blocks; ++k) l.order[k] = k;
    std::shuffle(l.order.begin(), l.order.end(), std::mt19937(blocks));
    int64_t threads = int64_t(blocks) * words[3] * words[4] * words[5];
    uint32_t cores = most_threads ? most_threads : std::max(1u, std::thread::hardware_concurrency());
    uint32_t count = uint32_t(std::min<int64_t>({int64_t(cores), int64_t(blocks), 1 + threads / SERIAL}));
    std::vector<std::thread> others;
    try {
        for (uint32_t k = 1; k < count; ++k) others.emplace_back(work, &l);
    } catch (const std::system_error&) {  // no more threads: those that are there do the work
    }
    work(&l);
    for (std::thread& other : others) other.join();
    last = l.fault;
    return l.failed;
}

}  // namespace simt

// For the host: what went wrong in the newest launch of this thread, and how many threads may run.
extern "C" void ruda_simt_fault(twin::Fault* out) { *out = simt::last; }
extern "C" void ruda_simt_threads(uint32_t count) { simt::most_threads = count; }
