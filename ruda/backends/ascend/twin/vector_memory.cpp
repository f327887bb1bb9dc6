// Copies between global memory and the unified buffer, and the scalar unit's cache.
#include "vector_state.h"

namespace twin {

// ---- global memory ----

namespace {

// `before` did what is in `list`; `after` touches [begin, end) now.
void check_order(Unit& u, const std::vector<Access>& list, Pipe before, Pipe after, uint64_t begin, uint64_t end,
                 const char* text) {
    for (const Access& x : list)
        if (x.begin < end && begin < x.end && !is_ordered(u, before, x.clock, after))
            fail("hazard", "%s at line %u of the text, and nothing orders the two", text, x.line);
}

void note(Unit& u, bool write, Pipe pipe, uint64_t begin, uint64_t end) {
    auto& list = write ? u.global_writes : u.global_reads;
    list.push_back({begin, end, u.clock, block().line});
    size_t& limit = u.prune_at[write];
    if (list.size() < limit) return;
    // What every pipe that could conflict is ordered after needs no look any more.
    auto settled = [&](const Access& x) {
        if (!write) return is_ordered(u, pipe, x.clock, mte3);
        return is_ordered(u, pipe, x.clock, mte2) && is_ordered(u, pipe, x.clock, scalar);
    };
    list.erase(std::remove_if(list.begin(), list.end(), settled), list.end());
    limit = std::max<size_t>(64, 2 * list.size());
}

void check_copy(const Unit& u, const View& local, Type type, uint64_t rows, uint64_t bytes, int64_t global_gap,
                int64_t local_gap) {
    const Buffer& b = buffer_of(u, local);
    if (b.position == Position::calculation)
        fail("position", "copies between global memory and VECCALC: declare the buffer as VECIN or VECOUT");
    if (local.offset % BLOCK) fail("alignment", "begins at byte %lld of the unified buffer, not at a multiple of 32",
                                   (long long)local.offset);
    if (rows > 4095) fail("range", "blockCount is %llu; at most 4095", (unsigned long long)rows);
    if (bytes > 2097151) fail("range", "blockLen is %llu bytes; at most 2097151", (unsigned long long)bytes);
    if (bytes % size_of(type)) fail("range", "blockLen is %llu bytes, not a multiple of the element's %u",
                                    (unsigned long long)bytes, size_of(type));
    if (global_gap < 0 || local_gap < 0) fail("range", "a negative stride");
}

}  // namespace

void copy_in(const char* api, Line line, Type type, View to, Global from, uint64_t rows, uint64_t bytes,
             int64_t global_gap, int64_t local_gap, Padding padding) {
    Block& b = enter(api, line);
    Unit& u = unit();
    check_copy(u, to, type, rows, bytes, global_gap, local_gap);
    uint32_t size = size_of(type);
    uint64_t left = padding.left * size, right = padding.right * size;
    if (left > 32 || right > 32) fail("range", "pads by %llu bytes; at most 32", (unsigned long long)std::max(left, right));
    uint64_t zero = 0;
    if (padding.pad && size == 8 && memcmp(padding.value, &zero, 8)) fail("range", "64-bit elements are padded with 0 only");
    if (!rows || !bytes) return;
    b.counts.copies_in++;
    uint64_t row = round_up(left + bytes + right);
    View at = to;
    for (uint64_t i = 0; i < rows; ++i) {
        auto pointer = reinterpret_cast<const uint8_t*>(from.address);
        check_global(from.range, pointer, bytes, false);
        uint32_t place = place_of(u, at, row, "destination");
        touch(u, place, row, mte2, true);
        check_order(u, u.global_writes, mte3, mte2, from.address, from.address + bytes,
                    "reads global memory that a copy out wrote");
        note(u, false, mte2, from.address, from.address + bytes);
        memset(&u.bytes[place], 0xFD, row);
        define(u, place, row, false);
        {
            GlobalLock lock;
            memcpy(&u.bytes[place + left], pointer, bytes);
        }
        define(u, place + left, bytes);
        if (padding.pad) {
            auto pad = [&](uint64_t begin, uint64_t length) {
                for (uint64_t k = 0; k < length; k += size) memcpy(&u.bytes[place + begin + k], padding.value, size);
                define(u, place + begin, length);
            };
            pad(0, left);
            pad(left + bytes, right);
        }
        b.counts.bytes_in += bytes;
        from.address += bytes + uint64_t(global_gap);
        at.offset += int64_t(row) + local_gap * BLOCK;
    }
}

void copy_out(const char* api, Line line, Type type, Global to, View from, uint64_t rows, uint64_t bytes,
              int64_t global_gap, int64_t local_gap) {
    Block& b = enter(api, line);
    Unit& u = unit();
    check_copy(u, from, type, rows, bytes, global_gap, local_gap);
    if (u.atomic != Accumulate::none && u.atomic_type != type)
        fail("atomic", "the atomic mode (line %u of the text) is for %s, not %s", u.atomic_line,
             TYPE[int(u.atomic_type)], TYPE[int(type)]);
    if (!rows || !bytes) return;
    b.counts.copies_out++;
    for (uint64_t i = 0; i < rows; ++i) {
        auto pointer = reinterpret_cast<uint8_t*>(to.address);
        check_global(to.range, pointer, bytes, true);
        uint32_t place = place_of(u, from, bytes, "source");
        touch(u, place, bytes, mte3, false);
        need_defined(u, place, bytes, "source");
        uint64_t end = to.address + bytes;
        check_order(u, u.global_reads, mte2, mte3, to.address, end, "writes global memory that a copy in read");
        note(u, true, mte3, to.address, end);
        if (!u.copied_out.empty() && u.copied_out.back().second == to.address) u.copied_out.back().second = end;
        else u.copied_out.push_back({to.address, end});
        GlobalLock lock;
        if (u.atomic == Accumulate::none) {
            memcpy(pointer, &u.bytes[place], bytes);
        } else {
            auto accumulate = [&](auto zero) {
                using T = decltype(zero);
                using C = typename Computing<T>::type;
                for (int64_t k = 0; k < int64_t(bytes / sizeof(T)); ++k) {
                    C x = C(get<T>(pointer, k)), y = C(get<T>(&u.bytes[place], k));
                    put<T>(pointer, k, T(u.atomic == Accumulate::add ? C(x + y)
                                         : u.atomic == Accumulate::max ? larger(x, y) : smaller(x, y)));
                }
            };
            if (type == Type::i8) accumulate(int8_t{});
            else if (type == Type::bf16) accumulate(bfloat16_t{});
            else with_type(type, accumulate);
        }
        b.counts.bytes_out += bytes;
        to.address += bytes + uint64_t(global_gap);
        from.offset += int64_t(round_up(bytes)) + local_gap * BLOCK;
    }
}

namespace {

CacheLine& cached(Unit& u, uint64_t address) {
    auto [found, is_new] = u.cache.try_emplace(address);
    if (is_new) {
        GlobalLock lock;
        memcpy(found->second.bytes, reinterpret_cast<const void*>(address), LINE);  // whole lines are in one page
        found->second.fetched = u.clock;
    }
    return found->second;
}

void clean(Unit& u, std::map<uint64_t, CacheLine>::iterator at) {
    CacheLine& c = at->second;
    if (c.any_dirty) {
        GlobalLock lock;
        // A chip writes the line whole. Here only what was stored goes back: that two blocks share a line is found
        // by `check_lines`, and other arrays of the process stay intact.
        for (uint64_t i = 0; i < LINE; ++i)
            if (c.dirty[i]) reinterpret_cast<uint8_t*>(at->first)[i] = c.bytes[i];
        u.dirtied.push_back(at->first);
    }
    u.cache.erase(at);
}

}  // namespace

void read_global(Line line, Global from, uint32_t size, void* value) {
    enter("GlobalTensor::GetValue", line).counts.global_reads++;
    Unit& u = unit();
    check_global(from.range, reinterpret_cast<const void*>(from.address), size, false);
    check_order(u, u.global_writes, mte3, scalar, from.address, from.address + size,
                "reads global memory that a copy out wrote");
    for (uint32_t i = 0; i < size; ++i) {  // an element may lie across two lines
        uint64_t address = from.address + i;
        CacheLine& c = cached(u, address / LINE * LINE);
        for (const Access& x : u.global_writes)
            if (x.begin <= address && address < x.end && x.clock > c.fetched)
                fail("stale-cache", "reads a cache line that was fetched before the copy out at line %u of the text wrote to "
                     "it: DataCacheCleanAndInvalid first", x.line);
        static_cast<uint8_t*>(value)[i] = c.bytes[address % LINE];
    }
}

void write_global(Line line, Global to, uint32_t size, const void* value) {
    enter("GlobalTensor::SetValue", line).counts.global_writes++;
    Unit& u = unit();
    check_global(to.range, reinterpret_cast<const void*>(to.address), size, true);
    for (uint32_t i = 0; i < size; ++i) {
        uint64_t address = to.address + i;
        CacheLine& c = cached(u, address / LINE * LINE);
        c.bytes[address % LINE] = static_cast<const uint8_t*>(value)[i];
        c.dirty[address % LINE] = true;
        if (!c.any_dirty) c.line = line;
        c.any_dirty = true;
    }
}

void clean_cache(Line line, Global at, bool all, bool to_memory) {
    enter("DataCacheCleanAndInvalid", line);
    Unit& u = unit();
    if (!to_memory) fail("mode", "only CACHELINE_OUT and CACHELINE_ALL reach global memory");
    if (all) {
        while (!u.cache.empty()) clean(u, u.cache.begin());
    } else if (auto found = u.cache.find(at.address / LINE * LINE); found != u.cache.end()) {
        clean(u, found);
    }
}

void set_atomic(const char* api, Line line, Accumulate kind, Type type) {
    enter(api, line);
    Unit& u = unit();
    u.atomic = kind;
    u.atomic_type = type;
    u.atomic_line = line;
}

}  // namespace twin
