/* One pass over each tensor of a list: norm, largest, mean, spread, NaN and Inf. Called by binding.py.
 *
 * Plain C without Python or torch: what it is given are addresses, sizes and function pointers. Must be
 * compiled without -ffast-math. `passes.h` and `gather.h` are parts of this file; the first is included once
 * for each vector width.
 *
 * Accuracy: 16- and 32-bit elements are summed in float within a block of 16 vectors, and the blocks in double
 * (norm within 1e-7 of the exact one, 1e-9 in practice). Where float squares may overflow, vanish or cancel,
 * the tensor is done again in double, and where double may, in double with a scale and around the mean.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
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
enum { BLOCK = 16, WIDEST = 64, LINE = 64, PAGE = 4096 };

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

/* Three passes in double with a scale: for what the fast ways have found doubtful. */
static void measure_carefully(const char *data, int kind, int64_t size, double row[ROWS]) {
    int64_t nans = 0, positive = 0, negative = 0;
    double largest = 0.0, sum = 0.0, squares = 0.0, spread = 0.0;
    for (int64_t i = 0; i < size; i++) {
        double x = value_at(data, kind, i);
        nans += x != x;
        positive += x == INFINITY;
        negative += x == -INFINITY;
        largest = fabs(x) > largest ? fabs(x) : largest;
    }
    row[NAN_COUNT] = (double)nans;
    row[INF_COUNT] = (double)(positive + negative);
    if (nans + positive + negative) {
        row[NORM] = row[MAX_ABS] = nans ? NAN : INFINITY;
        row[MEAN] = nans || (positive && negative) ? NAN : positive ? INFINITY : -INFINITY;
        row[STD] = NAN;
        return;
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

typedef struct {
    const char *name;
    void (*statistics)(Job *);
    void (*pairs)(int64_t, const uint64_t *, const uint64_t *, const int64_t *, const uint8_t *, int, double *);
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

static const Ways generic_ways = {"generic", statistics_generic, pairs_generic};
#if defined(__x86_64__)
static const Ways avx2_ways = {"avx2", statistics_avx2, pairs_avx2};
static const Ways avx512_ways = {"avx512", statistics_avx512, pairs_avx512};
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

/* ---- Histograms and units ---- */

enum { MAX_BINS = 128, TABLES = 4 };

/* Bits of |x| as a float, rounded towards 0; what a float cannot hold becomes its smallest or largest. */
INLINE uint32_t magnitude_bits(const char *data, int kind, int64_t at) {
    uint32_t bits = 0;
    if (kind == F32) {
        memcpy(&bits, data + 4 * at, 4);
        return bits & 0x7fffffff;
    }
    if (kind != F64) {
        float value = (float)value_at(data, kind, at);
        memcpy(&bits, &value, 4);
        return bits & 0x7fffffff;
    }
    uint64_t wide;
    memcpy(&wide, data + 8 * at, 8);
    wide &= INT64_MAX;
    int exponent = (int)(wide >> 52) - 1023 + 127;
    uint32_t mantissa = (uint32_t)(wide >> 29) & 0x7fffff;
    if (wide > 0x7ff0000000000000) return 0x7fc00000;
    if (wide == 0x7ff0000000000000) return 0x7f800000;
    if (wide == 0 || exponent > 254) return wide ? 0x7f7fffff : 0;
    if (exponent >= 1) return (uint32_t)exponent << 23 | mantissa;
    bits = exponent > -23 ? (mantissa | 0x800000) >> (1 - exponent) : 0;
    return bits ? bits : 1;
}

INLINE void count_bins(const char *data, int kind, int64_t size, const uint8_t *first, const uint32_t *edges,
                       int64_t counts[TABLES][MAX_BINS]) {
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits = magnitude_bits(data, kind, i);
        int bin = first[bits >> 23];
        /* No octave has more than two edges inside. */
        bin += bits >= edges[bin];
        bin += bits >= edges[bin];
        counts[i % TABLES][bin]++;
    }
}

/* Histograms of magnitudes: bin k holds edges[k - 1] <= bits of |x| < edges[k]; results are (count, bins). */
EXPORT void nanscope_histograms(int64_t count, const uint64_t *pointers, const int64_t *sizes,
                                const uint8_t *kinds, int64_t bins, const uint32_t *edges,
                                int64_t *results) {
    uint8_t first[256];
    unsigned before = set_arithmetic(IEEE);
    for (uint32_t octave = 0; octave < 256; octave++) {
        first[octave] = 0;
        for (int64_t k = 0; k < bins - 1; k++) first[octave] += edges[k] <= octave << 23;
    }
    for (int64_t t = 0; t < count; t++) {
        int64_t counts[TABLES][MAX_BINS] = {{0}};
        const char *data = (const char *)(uintptr_t)pointers[t];
        const int kind = kinds[t] & ~COMPLEX;
        if (kind == F32) count_bins(data, F32, sizes[t], first, edges, counts);
        else if (kind == F64) count_bins(data, F64, sizes[t], first, edges, counts);
        else if (kind == BF16) count_bins(data, BF16, sizes[t], first, edges, counts);
        else count_bins(data, F16, sizes[t], first, edges, counts);
        for (int64_t k = 0; k < bins; k++)
            results[t * bins + k] = counts[0][k] + counts[1][k] + counts[2][k] + counts[3][k];
    }
    set_arithmetic(before);
}

INLINE int is_nonzero(const char *data, int bytes, int64_t at) {
    uint64_t bits = 0;
    memcpy(&bits, data + bytes * at, (size_t)bytes);
    return (bits & ~(1ull << (8 * bytes - 1))) != 0;
}

INLINE void mark_units(const char *data, int bytes, int64_t outer, int64_t units, int64_t inner,
                       uint8_t *active) {
    for (int64_t o = 0; o < outer; o++) {
        const char *from = data + bytes * inner * units * o;
        if (inner == 1)
            for (int64_t u = 0; u < units; u++) active[u] |= is_nonzero(from, bytes, u);
        else
            for (int64_t u = 0; u < units; u++)
                for (int64_t i = 0; i < inner && !active[u]; i++)
                    active[u] = is_nonzero(from, bytes, u * inner + i);
        if (o % 16 == 15 && !memchr(active, 0, (size_t)units)) return;
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
