/* One pass over each tensor of a list: norm, largest, mean, spread, NaN and Inf. Called by binding.py.
 *
 * Plain C without Python or torch: what it is given are addresses, sizes and function pointers. Must be
 * compiled without -ffast-math. The headers are parts of this file; `passes.h`, which takes in `sampled.h`, is
 * included once for each vector width.
 *
 * Accuracy: 16- and 32-bit elements are summed in float within a block of 4 times 16 vectors, and the blocks in double
 * (norm within 1e-7 of the exact one, 1e-9 in practice). Where float squares may overflow, vanish or cancel,
 * the tensor is done again in double, and where double may, in double with a scale and around the mean.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#ifndef SOURCE_ID
#define SOURCE_ID ""
#endif
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wpsabi"

/* Kinds of elements; COMPLEX is added to the kind of the two parts. */
enum { MISSING = 0, F32 = 1, F64 = 2, F16 = 3, BF16 = 4, COMPLEX = 8, KNOWN_SPECIAL = 254, SPECIAL = 255 };
enum { NORM, MAX_ABS, MEAN, STD, NAN_COUNT, INF_COUNT, ROWS };
/* So many tensors ahead, up to a page of each is fetched: 2,000 small ones took 310 us without, 205 with. */
enum { BLOCK = 16, STREAMS = 4, WIDEST = 64, LINE = 64, PAGE = 4096, AHEAD = 24 };
/* Elements of a kept tensor for each of its marks; mirrored by binding.py. */
enum { MARKED = 512 };
/* So few units that were 0 so far are looked at one by one. */
enum { FEW_UNITS = 64 };

/* Mirrored by binding.py. */
typedef struct {
    int64_t count;
    const uint64_t *pointers; /* (count,) first elements */
    const int64_t *sizes;     /* (count,) elements, a complex one as two */
    const uint8_t *kinds;     /* (count,) */
    double *block;            /* (ROWS, count) */
    const double *bounds;     /* (2, count) low and high, NaN for none; or NULL */
    double *fractions;        /* (2, count) zero and saturated; with bounds only */
    double total_norm;
    int64_t nonfinite;        /* NaN and Inf elements of all tensors */
    int64_t missing;
    int64_t special;          /* tensors left to others */
    int64_t complex_count;
    int64_t elements;
} Job;

typedef struct {
    double sum, squares, max_abs;
    int64_t zeros, saturated;
} Sums;

typedef struct {
    int wanted;
    double low, high;
} Counting;

static int is_readable(int kind) { return kind != MISSING && kind < KNOWN_SPECIAL; }

static int element_bytes(int kind) { return kind == F64 ? 8 : kind == F32 ? 4 : 2; }

static double value_at(const char *data, int kind, int64_t at) {
    uint32_t bits = 0;
    float single;
    double value;
    if (kind == F64) {
        memcpy(&value, data + 8 * at, 8);
        return value;
    }
    memcpy(&bits, data + element_bytes(kind) * at, element_bytes(kind));
    if (kind == F16) {
        uint32_t body = bits & 0x7fff;
        value = body < 0x0400 ? body * 0x1p-24 : 0.0;
        if (body < 0x0400) return bits & 0x8000 ? -value : value;
        bits = (bits & 0x8000) << 16 | ((body << 13) + ((body >= 0x7c00 ? 224u : 112u) << 23));
    } else if (kind == BF16) {
        bits <<= 16;
    }
    memcpy(&single, &bits, 4);
    return single;
}

/* NaN, +Inf and -Inf among elements of one kind, by their bits: of many tensors at each step of a run that stays
 * non-finite, so in loops that the compiler makes vectors of. */
typedef struct {
    int64_t nans, positive, negative;
} Nonfinite;

#define ADD_NONFINITE(type, magnitude, infinity) \
    for (int64_t at = 0; at < size;) { \
        const int64_t end = size - at < 1 << 14 ? size : at + (1 << 14); \
        type nans = 0, positive = 0, infinite = 0; \
        for (; at < end; at++) { \
            type bits; \
            memcpy(&bits, data + sizeof bits * (size_t)at, sizeof bits); \
            const type body = bits & (magnitude), inf = (infinity); \
            nans += body > inf; \
            positive += bits == inf; \
            infinite += body == inf; \
        } \
        found.nans += nans; \
        found.positive += positive; \
        found.negative += infinite - positive; \
    }

static Nonfinite count_nonfinite(const char *data, int kind, int64_t size) {
    Nonfinite found = {0, 0, 0};
    if (kind == F64) ADD_NONFINITE(int64_t, INT64_MAX, 0x7ff0000000000000)
    else if (kind == F32) ADD_NONFINITE(int32_t, INT32_MAX, 0x7f800000)
    else if (kind == BF16) ADD_NONFINITE(int16_t, INT16_MAX, 0x7f80)
    else ADD_NONFINITE(int16_t, INT16_MAX, 0x7c00)
    return found;
}

/* Passes in double with a scale: for what the fast ways have found doubtful. */
static void measure_carefully(const char *data, int kind, int64_t size, double row[ROWS]) {
    const Nonfinite found = count_nonfinite(data, kind, size);
    double largest = 0.0, sum = 0.0, squares = 0.0, spread = 0.0;
    row[NAN_COUNT] = (double)found.nans;
    row[INF_COUNT] = (double)(found.positive + found.negative);
    if (found.nans + found.positive + found.negative) {
        row[NORM] = row[MAX_ABS] = found.nans ? NAN : INFINITY;
        row[MEAN] = found.nans || (found.positive && found.negative) ? NAN : found.positive ? INFINITY : -INFINITY;
        row[STD] = NAN;
        return;
    }
    for (int64_t i = 0; i < size; i++) {
        const double x = fabs(value_at(data, kind, i));
        largest = x > largest ? x : largest;
    }
    int exponent = 0;
    frexp(largest, &exponent);
    /* In two factors: 2 to the power of -exponent alone may overflow. */
    double half = ldexp(1.0, -exponent / 2), rest = ldexp(1.0, -exponent - -exponent / 2);
    for (int64_t i = 0; i < size; i++) {
        double x = value_at(data, kind, i) * half * rest;
        sum += x;
        squares += x * x;
    }
    double mean = sum / (double)size;
    for (int64_t i = 0; i < size; i++) {
        double x = value_at(data, kind, i) * half * rest - mean;
        spread += x * x;
    }
    row[NORM] = sqrt(squares) / half / rest;
    row[MAX_ABS] = largest;
    row[MEAN] = mean / half / rest;
    row[STD] = sqrt(spread / (double)size) / half / rest;
}

/* Largest absolute value of a complex tensor of `size` parts, all finite. */
static double largest_modulus(const char *data, int kind, int64_t size) {
    double largest = 0.0;
    for (int64_t i = 0; i < size; i += 2) {
        double modulus = hypot(value_at(data, kind, i), value_at(data, kind, i + 1));
        largest = modulus > largest ? modulus : largest;
    }
    return largest;
}

/* Whether the sums carry the statistics, which are then written. */
static int write_row(const Sums *sums, int64_t size, double least_square, double least_spread,
                     double row[ROWS]) {
    double n = (double)size, mean = sums->sum / n, square = sums->squares / n;
    double variance = square - mean * mean;
    /* Written so that a NaN is doubtful. */
    if (!(square < 1e290)) return 0;
    if (sums->max_abs > 0.0 && (square < least_square || variance < least_spread * square)) return 0;
    row[NORM] = sqrt(sums->squares);
    row[MAX_ABS] = sums->max_abs;
    row[MEAN] = mean;
    row[STD] = variance > 0.0 ? sqrt(variance) : 0.0;
    row[NAN_COUNT] = row[INF_COUNT] = 0.0;
    return 1;
}

/* How subnormal numbers are treated: as IEEE has it, or as 0, which is fast; returns how it was before. */
#if defined(__x86_64__)
enum { IEEE = 0x1f80, FLUSH = 0x9fc0 };
INLINE unsigned set_arithmetic(unsigned mode) {
    unsigned before = _mm_getcsr();
    _mm_setcsr(mode);
    return before;
}
#else
enum { IEEE, FLUSH };
INLINE unsigned set_arithmetic(unsigned mode) { return mode; }
#endif

#include "histograms.h"

typedef struct {
    const char *name;
    void (*statistics)(Job *);
    void (*pairs)(int64_t, const uint64_t *, const uint64_t *, const int64_t *, const uint8_t *, int, double *);
    void (*histogram)(const char *, int, int64_t, const Bins *, int64_t *);
    void (*turn)(const char *, char *, int, int64_t, uint8_t *, double *);
    void (*moments)(const char *, const char *, int, int64_t, float, double *);
} Ways;

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define LANES 4
#define NAMED(x) JOIN(x, _generic)
#define TARGET
#include "passes.h"
#if defined(__x86_64__)
#define LANES 8
#define NAMED(x) JOIN(x, _avx2)
#define TARGET __attribute__((target("avx2,fma")))
#include "passes.h"
#define LANES 16
#define NAMED(x) JOIN(x, _avx512)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#include "passes.h"
#endif

static const Ways generic_ways = {"generic", statistics_generic, pairs_generic, histogram_generic, turn_generic, moments_generic};
#if defined(__x86_64__)
static const Ways avx2_ways = {"avx2", statistics_avx2, pairs_avx2, histogram_avx2, turn_avx2, moments_avx2};
static const Ways avx512_ways = {"avx512", statistics_avx512, pairs_avx512, histogram_avx512, turn_avx512, moments_avx512};
#endif
static const Ways *ways = &generic_ways;

/* Choose by what the processor has, at most `width` bits wide; returns the name of the choice. */
EXPORT const char *nanscope_choose(int width) {
    ways = &generic_ways;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (width >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ways = &avx2_ways;
    if (width >= 512 && ways == &avx2_ways && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        ways = &avx512_ways;
#endif
    return ways->name;
}

EXPORT const char *nanscope_source(void) { return SOURCE_ID; }

static void sum_up(Job *job) {
    double squares = 0.0, largest = 0.0, nonfinite = 0.0;
    for (int64_t i = 0; i < job->count; i++) {
        double norm = job->block[NORM * job->count + i];
        squares += norm * norm;
        largest = norm > largest ? norm : largest;
        nonfinite += job->block[NAN_COUNT * job->count + i] + job->block[INF_COUNT * job->count + i];
    }
    job->nonfinite = (int64_t)nonfinite;
    job->total_norm = sqrt(squares);
    if (nonfinite == 0.0 && largest > 0.0 && !(squares > 1e-280 && squares < 1e290)) {
        squares = 0.0;
        for (int64_t i = 0; i < job->count; i++) {
            double norm = job->block[NORM * job->count + i] / largest;
            squares += norm * norm;
        }
        job->total_norm = sqrt(squares) * largest;
    }
}

EXPORT void nanscope_statistics(Job *job) {
    unsigned before = set_arithmetic(FLUSH);
    ways->statistics(job);
    set_arithmetic(IEEE);
    sum_up(job);
    set_arithmetic(before);
}

/* L2 norms of a - b, or with `product` the sums of a * b. */
EXPORT void nanscope_pairs(int64_t count, const uint64_t *a, const uint64_t *b, const int64_t *sizes,
                           const uint8_t *kinds, int product, double *results) {
    unsigned before = set_arithmetic(IEEE);
    ways->pairs(count, a, b, sizes, kinds, product, results);
    set_arithmetic(before);
}

/* (2, count) sums of new * new and of new * old; afterwards the old ones hold what the new ones do. `marks` has
 * for each the address of a byte for every MARKED elements of the old one, or 0. */
EXPORT void nanscope_turn(int64_t count, const uint64_t *new, const uint64_t *old, const int64_t *sizes,
                          const uint8_t *kinds, const uint64_t *marks, double *results) {
    unsigned before = set_arithmetic(IEEE);
    for (int64_t i = 0; i < count; i++) {
        double sums[2] = {0};
        if (sizes[i])
            ways->turn((const char *)(uintptr_t)new[i], (char *)(uintptr_t)old[i], kinds[i] & ~COMPLEX, sizes[i],
                       (uint8_t *)(uintptr_t)marks[i], sums);
        for (int s = 0; s < 2; s++) results[s * count + i] = sums[s];
    }
    set_arithmetic(before);
}

/* (3, count) L2 norms: of both moments, of 16 or 32 bits, and of first / (sqrt(second) + eps). */
EXPORT void nanscope_moments(int64_t count, const uint64_t *first, const uint64_t *second, const int64_t *sizes,
                             const uint8_t *kinds, const double *eps, double *results) {
    unsigned before = set_arithmetic(IEEE);
    for (int64_t i = 0; i < count; i++) {
        double sums[3] = {0};
        if (sizes[i])
            ways->moments((const char *)(uintptr_t)first[i], (const char *)(uintptr_t)second[i], kinds[i],
                          sizes[i], (float)eps[i], sums);
        for (int s = 0; s < 3; s++) results[s * count + i] = sqrt(sums[s]);
    }
    set_arithmetic(before);
}

static void count_magnitudes(const char *data, int kind, int64_t size, const Bins *bins, int64_t *row) {
    if (size < COUNTED_ONE_BY_ONE) {
        if (kind == F32) count_one_by_one(data, F32, size, bins, row);
        else if (kind == F64) count_one_by_one(data, F64, size, bins, row);
        else if (kind == BF16) count_one_by_one(data, BF16, size, bins, row);
        else count_one_by_one(data, F16, size, bins, row);
        return;
    }
    for (int64_t n; size > 0; size -= n, data += n * element_bytes(kind)) {
        n = size < PIECE ? size : PIECE;
        ways->histogram(data, kind, n, bins, row);
    }
}

/* Histograms of magnitudes: bin k holds edges[k - 1] <= bits of |x| < edges[k]; results are (count, bins). */
EXPORT void nanscope_histograms(int64_t count, const uint64_t *pointers, const int64_t *sizes,
                                const uint8_t *kinds, int64_t bins, const uint32_t *edges,
                                int64_t *results) {
    Bins prepared;
    unsigned before = set_arithmetic(IEEE);
    prepare_bins(&prepared, bins, edges);
    memset(results, 0, (size_t)(count * bins) * sizeof *results);
    for (int64_t t = 0; t < count; t++)
        count_magnitudes((const char *)(uintptr_t)pointers[t], kinds[t] & ~COMPLEX, sizes[t], &prepared,
                         results + t * bins);
    set_arithmetic(before);
}

INLINE int is_nonzero(const char *data, int bytes, int64_t at) {
    uint64_t bits = 0;
    memcpy(&bits, data + bytes * at, (size_t)bytes);
    return (bits & ~(1ull << (8 * bytes - 1))) != 0;
}

/* The units that were idle so far, where they are few; their number, or -1. */
static int64_t find_idle(const uint8_t *active, int64_t units, int64_t idle[FEW_UNITS]) {
    int64_t found = 0;
    for (int64_t u = 0; u < units; u++) {
        if (active[u]) continue;
        if (found == FEW_UNITS) return -1;
        idle[found++] = u;
    }
    return found;
}

INLINE void mark_units(const char *data, int bytes, int64_t outer, int64_t units, int64_t inner,
                       uint8_t *active) {
    int64_t idle[FEW_UNITS], left = -1;
    for (int64_t o = 0; o < outer && left; o++) {
        const char *from = data + bytes * inner * units * o;
        if (inner == 1 && left < 0)
            for (int64_t u = 0; u < units; u++) active[u] |= is_nonzero(from, bytes, u);
        else if (inner == 1)
            for (int64_t i = 0; i < left; i++) active[idle[i]] |= is_nonzero(from, bytes, idle[i]);
        else
            for (int64_t u = 0; u < units; u++)
                for (int64_t i = 0; i < inner && !active[u]; i++)
                    active[u] = is_nonzero(from, bytes, u * inner + i);
        if (o % 16 == 15) left = find_idle(active, units, idle);
    }
}

/* Which units of an (outer, units, inner) tensor have an element that is not 0; `active` comes as zeros. */
EXPORT void nanscope_units(uint64_t pointer, int kind, int64_t outer, int64_t units, int64_t inner,
                           uint8_t *active) {
    const char *data = (const char *)(uintptr_t)pointer;
    int bytes = element_bytes(kind);
    if (bytes == 8) mark_units(data, 8, outer, units, inner, active);
    else if (bytes == 4) mark_units(data, 4, outer, units, inner, active);
    else mark_units(data, 2, outer, units, inner, active);
}

#include "gather.h"

#include "hot.h"

#include "calls.h"
