// The runtime behind core.h.
#include "core.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

namespace twin {

namespace {

thread_local Block* current = nullptr;
std::mutex global_memory;

struct Stop {};  // thrown by `fail`: the fault is in `failed`
thread_local Fault failed;

uint64_t mix(uint64_t x) {  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void write_fault(const char* rule, const char* format, va_list arguments) {
    failed = Fault{};
    failed.thread[0] = failed.thread[1] = failed.thread[2] = -1;
    snprintf(failed.rule, sizeof failed.rule, "%s", rule);
    vsnprintf(failed.message, sizeof failed.message, format, arguments);
    if (!current) return;
    snprintf(failed.api, sizeof failed.api, "%s", current->api);
    failed.line = current->line;
    failed.block[0] = current->id;
    memcpy(failed.thread, current->thread, sizeof failed.thread);
}

void write_fault(const char* rule, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_fault(rule, format, arguments);
    va_end(arguments);
}

void add(Counts& total, const Counts& one) {
    static_assert(sizeof(Counts) % sizeof(uint64_t) == 0);
    auto to = reinterpret_cast<uint64_t*>(&total);
    auto from = reinterpret_cast<const uint64_t*>(&one);
    for (size_t i = 0; i < sizeof(Counts) / sizeof(uint64_t); ++i) to[i] += from[i];
}

}  // namespace

Block& block() {
    if (!current) {
        fprintf(stderr, "ruda's twin: a call of the AscendC API outside a kernel\n");
        abort();
    }
    return *current;
}

void fail(const char* rule, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_fault(rule, format, arguments);
    va_end(arguments);
    throw Stop{};
}

uint64_t random_number() { return mix(block().random += 0x9e3779b97f4a7c15u); }

const Range* range_of(const void* pointer) {
    const Run& run = *block().run;
    auto address = reinterpret_cast<uint64_t>(pointer);
    const Range* ending = nullptr;
    for (const Range* r = run.ranges; r != run.ranges + run.range_count; ++r) {
        if (address - r->base < r->bytes) return r;
        if (address == r->base + r->bytes) ending = r;  // an empty array, or a pointer past the end
    }
    return ending;
}

void check_global(const Range* range, const void* pointer, uint64_t bytes, bool write) {
    const char* verb = write ? "writes" : "reads";
    auto address = reinterpret_cast<uint64_t>(pointer);
    if (!range)
        fail("global-bounds", "%s %llu bytes of global memory that no array has", verb, (unsigned long long)bytes);
    uint64_t offset = address - range->base;
    if (offset > range->bytes || bytes > range->bytes - offset)
        fail("global-bounds", "%s %llu bytes at byte %lld of `%s`, which has %llu", verb, (unsigned long long)bytes,
             (long long)offset, range->name, (unsigned long long)range->bytes);
    if (write && !range->writable) fail("read-only", "writes to `%s`, which the kernel was said only to read", range->name);
}

GlobalLock::GlobalLock() { global_memory.lock(); }
GlobalLock::~GlobalLock() { global_memory.unlock(); }

int run_blocks(void* stream, uint32_t blocks, void (*body)(void*), void* data) {
    Run& run = *static_cast<Run*>(stream);
    run.counts = Counts{};
    run.faulted = 0;
    std::mutex results;
    auto report = [&](const Fault& fault) {  // of several, the lowest block's, so that it is nearly reproducible
        std::lock_guard<std::mutex> lock(results);
        if (!run.faulted || fault.block[0] < run.fault.block[0]) run.fault = fault;
        run.faulted = 1;
    };
    if (blocks < 1 || blocks > block_limit) {
        write_fault("launch", "%u blocks; a launch takes 1 to %u", blocks, block_limit);
        report(failed);
        return 1;
    }
    std::vector<uint32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    uint64_t random = run.seed;
    for (uint32_t i = blocks - 1; i > 0; --i)
        std::swap(order[i], order[mix(random += 0x9e3779b97f4a7c15u) % (i + 1)]);

    std::atomic<uint32_t> next{0};
    std::atomic<bool> stop{false};
    auto work = [&] {
        Counts counts{};
        for (uint32_t i; !stop && (i = next++) < blocks;) {
            Block b{};
            b.run = &run;
            b.id = order[i];
            b.count = blocks;
            b.api = "kernel";
            b.thread[0] = b.thread[1] = b.thread[2] = -1;
            b.random = mix(run.seed ^ (uint64_t(b.id) << 32));
            current = &b;
            try {
                body(data);
            } catch (const Stop&) {
                report(failed);
                stop = true;
            } catch (const std::exception& error) {
                write_fault("twin", "%s", error.what());
                report(failed);
                stop = true;
            }
            current = nullptr;
            add(counts, b.counts);
        }
        std::lock_guard<std::mutex> lock(results);
        add(run.counts, counts);
    };
    uint32_t workers = run.workers ? run.workers : std::max(1u, std::thread::hardware_concurrency());
    workers = std::min(workers, blocks);
    if (workers == 1) {
        work();
    } else {
        std::vector<std::thread> threads;
        try {
            for (uint32_t i = 1; i < workers; ++i) threads.emplace_back(work);
        } catch (const std::system_error&) {  // no more threads: those that are there do the work
        }
        work();
        for (auto& t : threads) t.join();
    }
    return run.faulted ? 1 : 0;
}

}  // namespace twin
