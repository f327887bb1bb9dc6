// Arrays in the unified buffer, and who touched each element last: data races are found here.
//
// Two accesses of an element race if different threads of the block make them, one of them writes,
// not both are atomic, and nothing orders them. A barrier of the block orders all threads, an exchange
// of a warp its lanes; what a thread did before a fence is taken as ordered. In which order the
// emulation runs the threads does not matter. Only shared memory is watched: global memory is
// touched by blocks on several threads of the host, and would have to be locked.
#pragma once

namespace simt {

enum Access { READ, WRITE, UPDATE };  // the last is atomic

// An access: when, in counts of the block's barriers, the warp's exchanges and the thread's fences.
struct Stamp {
    uint32_t epoch, phase, line;
    uint16_t thread, fence;
};

// Of reads and updates two are enough to find every conflict: they stem from two warps if any do.
struct Cell {
    Stamp write, reads[2], updates[2];
};

void race(const Stamp& other, Access mine, Access theirs, int64_t index, int line);
Cell* dynamic_cells();  // one a byte

inline bool before(const Stamp& s) {
    return s.epoch != here.epoch || s.thread == here.linear ||
           (s.thread / warpSize == here.linear / warpSize && s.phase != here.phase);
}

inline void note(Stamp (&seen)[2], const Stamp& now) {
    if (before(seen[0]))
        seen[0] = now;
    else if (before(seen[1]) || seen[1].thread / warpSize == seen[0].thread / warpSize)
        seen[1] = now;
}

inline void touch(Cell& c, Access how, int64_t index, int line) {
    if (!before(c.write)) race(c.write, how, WRITE, index, line);
    if (how != READ)
        for (const Stamp& s : c.reads)
            if (!before(s)) race(s, how, READ, index, line);
    if (how != UPDATE)
        for (const Stamp& s : c.updates)
            if (!before(s)) race(s, how, UPDATE, index, line);
    const Stamp now{here.epoch, here.phase, uint32_t(line), uint16_t(here.linear), here.fence};
    if (how == READ)
        note(c.reads, now);
    else if (how == UPDATE)
        note(c.updates, now);
    else
        c.write = now;
}

// Where an element is, and the cells that watch it.
template <class T>
struct Place {
    T* data;
    Cell* cells;
    int count;
    int64_t index;
    int line;
    T& touched(Access how) const {
        for (int k = 0; k < count; ++k) touch(cells[k], how, index, line);
        return *data;
    }
};

// What an index gives: reading, storing and taking the address (for an atomic) are told apart.
template <class T, bool = __is_class(T)>
struct Element {
    Place<T> place;
    explicit Element(const Place<T>& p) : place(p) {}
    Element(const Element&) = default;
    operator T() const { return place.touched(READ); }
    Element& operator=(T x) {
        place.touched(WRITE) = x;
        return *this;
    }
    Element& operator=(const Element& x) { return *this = T(x); }
    T* operator&() const { return &place.touched(UPDATE); }
};
// Complex numbers have parts that are named: they are read at once. A store reads too, which finds
// no more than the store does.
template <class T>
struct Element<T, true> : T {
    Place<T> place;
    explicit Element(const Place<T>& p) : T(p.touched(READ)), place(p) {}
    Element(const Element&) = default;
    Element& operator=(const T& x) {
        place.touched(WRITE) = x;
        return *this;
    }
    Element& operator=(const Element& x) { return *this = static_cast<const T&>(x); }
};

inline void check_axis(At at, int extent) {
    if (at.index < 0 || at.index >= extent)
        fault("buffer-bounds", at.line, "index %lld is outside of an axis of %lld", at.index, extent);
}

template <class T, int N, int... M>
struct Row {
    T* data;
    Cell* cells;
    int64_t index;
    auto operator[](At at) const {
        check_axis(at, N);
        const int64_t k = index * N + at.index;
        if constexpr (sizeof...(M) != 0)
            return Row<T, M...>{data, cells, k};
        else
            return Element<T>(Place<T>{data + k, cells + k, 1, k, at.line});
    }
};

namespace unified {
template <class T, int... N>
struct array {
    alignas(8) T data[(N * ...)];
    Cell cells[(N * ...)];
    auto operator[](At at) { return Row<T, N...>{data, cells, 0}[at]; }
};
}  // namespace unified

// Dynamic memory of the block: as many bytes as the launch asked for. Arrays in it may overlap.
template <class T>
struct Dynamic {
    Element<T> operator[](At at) const {
        const int64_t size = int64_t(sizeof(T));
        if (at.index < 0 || (at.index + 1) * size > dynamic_bytes())
            fault("buffer-bounds", at.line, "element %lld is outside of %lld bytes of dynamic memory",
                  at.index, dynamic_bytes());
        return Element<T>(Place<T>{reinterpret_cast<T*>(dynamic_memory()) + at.index,
                                   dynamic_cells() + at.index * size, int(size), at.index, at.line});
    }
};

}  // namespace simt
