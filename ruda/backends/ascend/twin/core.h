// What both twins stand on: who runs, where in the text, which global memory exists, how a fault ends a run.
//
// A kernel file includes kernel_operator.h (vector unit of the 910B class) or simt.h (950 class); both include
// this. Only declarations are here: the bodies are compiled once into the runtime (core.cpp and others), so that
// a kernel file compiles in a fraction of a second.
//
// The rule: whatever a kernel does wrong ends in `fail`, never in a crash. A fault ends its block by an
// exception, the other blocks of the run are not started any more, and `Run` tells the loader.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fault.h"

#define RUDA_TWIN 1  // generated text asks for it: launch by `twin::...` here, by <<<>>> on a device
#define __aicore__
#define __global__
#define __gm__
#define __vector__
#define __cube__
#define __mix__(...)

namespace twin {

// ---- shared with twin/__init__.py: the layout of these is C and mirrored there ----

struct Range {  // global memory that the kernel may touch
    uint64_t base, bytes;
    const char* name;  // of the array, for messages
    uint32_t writable;
    uint32_t reserved;
};

struct Counts {
    uint64_t vector_instructions, copies_in, copies_out, bytes_in, bytes_out;
    uint64_t scalar_reads, scalar_writes;  // of the unified buffer
    uint64_t global_reads, global_writes;  // scalar ones
    uint64_t barriers, flags;
};

struct Run {  // one launch
    const Range* ranges;
    uint32_t range_count;
    uint32_t workers;  // OS threads; 0: one per core
    uint64_t seed;     // of the order of the blocks
    Counts counts;     // out
    uint32_t faulted;  // out
    Fault fault;       // out: of the lowest block that failed
};

// ---- the block that this OS thread runs ----

struct Block {
    Run* run;
    uint32_t id, count;
    const char* api;    // the call being made, for faults
    uint32_t line;
    int32_t thread[3];  // set by the SIMT twin
    uint64_t random;
    Counts counts;
    void* unit;         // state of the vector unit or of the SIMT block
};

Block& block();  // asserts that there is one

// Default argument of every call of the API, last: `F(..., Line line = TWIN_LINE)`.
using Line = uint32_t;
#define TWIN_LINE __builtin_LINE()

inline Block& enter(const char* api, Line line) {
    Block& b = block();
    b.api = api;
    b.line = line;
    return b;
}

// Ends the block. `rule` is a key of RULES in twin/__init__.py.
[[noreturn]] void fail(const char* rule, const char* format, ...) __attribute__((format(printf, 2, 3)));

uint64_t random_number();  // of the block, from the run's seed

// ---- global memory ----

// The registered range that holds the address, or that ends there; null if there is none.
const Range* range_of(const void* address);
// `range` is where the pointer came from: an access that lands in another array is out of bounds, too.
void check_global(const Range* range, const void* address, uint64_t bytes, bool write);
// Accesses of different blocks are made under this lock.
struct GlobalLock {
    GlobalLock();
    ~GlobalLock();
};

// ---- a launch ----

// Calls `body` once for each block, in random order, on several threads. 0, or 1 and `run->fault`.
// `stream` is the Run: where a device has its stream, so that launchers have one signature.
int run_blocks(void* stream, uint32_t blocks, void (*body)(void*), void* data);

template <class Body>
int run_blocks(void* stream, uint32_t blocks, const Body& body) {
    return run_blocks(stream, blocks, [](void* data) { (*static_cast<const Body*>(data))(); }, (void*)&body);
}

constexpr uint32_t block_limit = 65535;

}  // namespace twin
