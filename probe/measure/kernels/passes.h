/* The passes over memory, for one vector width: included by kernel.c once for each.
 *
 * LANES floats make a vector, NAMED(x) is the name of x for this width, TARGET the attribute of its functions.
 */

typedef float NAMED(vf) __attribute__((vector_size(4 * LANES)));
typedef int32_t NAMED(vi) __attribute__((vector_size(4 * LANES)));
typedef double NAMED(vd) __attribute__((vector_size(4 * LANES)));
typedef int64_t NAMED(vl) __attribute__((vector_size(4 * LANES)));
typedef float NAMED(vh) __attribute__((vector_size(2 * LANES)));
#define VF NAMED(vf)
#define VI NAMED(vi)
#define VD NAMED(vd)
#define VL NAMED(vl)
#define VH NAMED(vh)
#define HALF (LANES / 2)
#define PAIR (2 * LANES)

INLINE TARGET VI NAMED(larger)(VI a, VI b) {
    VI first = a > b;
    return (a & first) | (b & ~first);
}

INLINE TARGET VF NAMED(from_fp16)(VI bits) {
    VI body = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    VI is_small = body < 0x0400, is_nonfinite = body > 0x7bff;
    VI normal = (body << 13) + (112 << 23) + (is_nonfinite & (112 << 23));
    VF small = __builtin_convertvector(body, VF) * 0x1p-24f;
    return (VF)((((VI)small & is_small) | (normal & ~is_small)) | sign);
}

/* Read PAIR elements as two vectors; the order of 16-bit elements is not kept, but is the same for all. */
INLINE TARGET void NAMED(load)(const char *data, int kind, VF *a, VF *b) {
    VI words;
    if (kind == F32) {
        memcpy(a, data, sizeof *a);
        memcpy(b, data + sizeof *a, sizeof *b);
        return;
    }
    memcpy(&words, data, sizeof words);
    if (kind == BF16) {
        *a = (VF)(words << 16);
        *b = (VF)(words & (int32_t)0xffff0000);
    } else {
        *a = NAMED(from_fp16)(words & 0xffff);
        *b = NAMED(from_fp16)((words >> 16) & 0xffff);
    }
}

INLINE TARGET void NAMED(widen)(VF narrow, VD *low, VD *high) {
    VH half;
    memcpy(&half, &narrow, sizeof half);
    *low = __builtin_convertvector(half, VD);
    memcpy(&half, (const char *)&narrow + sizeof half, sizeof half);
    *high = __builtin_convertvector(half, VD);
}

/* In pairs, not one after the other: of a small tensor this takes as long as reading it. */
INLINE TARGET double NAMED(total)(VD lanes) {
    double sums[HALF];
    memcpy(sums, &lanes, sizeof sums);
    for (int width = HALF / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

typedef struct {
    VF sums[STREAMS], squares[STREAMS];
    VI largest[STREAMS], zeros, saturated;
} NAMED(State);

/* Add a vector's bytes of memory to one of the sums: LANES elements of 32 bits, or PAIR of 16. */
INLINE TARGET void NAMED(add)(NAMED(State) * s, int j, const char *data, int kind, int counting, VF low, VF high) {
    VF x[2];
    const int parts = kind == F32 ? 1 : 2;
    if (kind == F32) memcpy(&x[0], data, sizeof x[0]);
    else NAMED(load)(data, kind, &x[0], &x[1]);
    s->sums[j] += kind == F32 ? x[0] : x[0] + x[1];
    s->squares[j] += kind == F32 ? x[0] * x[0] : x[0] * x[0] + x[1] * x[1];
    for (int i = 0; i < parts; i++) {
        VI magnitude = (VI)x[i] & 0x7fffffff;
        s->largest[j] = NAMED(larger)(magnitude, s->largest[j]);
        if (counting) {
            s->zeros -= magnitude == 0;
            s->saturated -= (VI)(x[i] <= low) | (VI)(x[i] >= high);
        }
    }
}

INLINE TARGET void NAMED(flush)(NAMED(State) * s, VD *sums, VD *squares) {
    VD low, high;
    NAMED(widen)((s->sums[0] + s->sums[1]) + (s->sums[2] + s->sums[3]), &low, &high);
    *sums += low + high;
    NAMED(widen)((s->squares[0] + s->squares[1]) + (s->squares[2] + s->squares[3]), &low, &high);
    *squares += low + high;
    memset(s->sums, 0, sizeof s->sums);
    memset(s->squares, 0, sizeof s->squares);
}

/* Sums of 16- and 32-bit elements; not finite or too small where float squares do not carry them.
 *
 * The four quarters of a tensor are read side by side: more of what is on its way from memory at once than the
 * processor fetches ahead of one reader, who has to wait for every new page. */
INLINE TARGET Sums NAMED(sum_floats)(const char *data, int kind, int64_t size, int counting, Counting c) {
    const int step = sizeof(VF), unit = kind == F32 ? LANES : PAIR;
    const int64_t quarter = size / (STREAMS * unit), apart = quarter * step;
    VF low = (VF){0} + (float)c.low, high = (VF){0} + (float)c.high;
    NAMED(State) s = {0};
    VD sums = {0}, squares = {0};
    int64_t done = 0;
    for (; quarter - done >= BLOCK; done += BLOCK) {
        for (int k = 0; k < BLOCK; k++, data += step)
            for (int j = 0; j < STREAMS; j++) NAMED(add)(&s, j, data + j * apart, kind, counting, low, high);
        NAMED(flush)(&s, &sums, &squares);
    }
    for (; done < quarter; done++, data += step)
        for (int j = 0; j < STREAMS; j++) NAMED(add)(&s, j, data + j * apart, kind, counting, low, high);
    data += (STREAMS - 1) * apart;
    int64_t left = size - STREAMS * quarter * unit;
    for (; left >= unit; left -= unit, data += step) NAMED(add)(&s, 0, data, kind, counting, low, high);
    if (left) {
        char rest[WIDEST] = {0};
        memcpy(rest, data, (size_t)(left * step / unit));
        NAMED(add)(&s, 1, rest, kind, counting, low, high);
    }
    NAMED(flush)(&s, &sums, &squares);
    Sums result = {NAMED(total)(sums), NAMED(total)(squares), 0.0, 0, 0};
    VI largest = NAMED(larger)(NAMED(larger)(s.largest[0], s.largest[1]), NAMED(larger)(s.largest[2], s.largest[3]));
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits = largest[i] > bits ? largest[i] : bits;
    /* A subnormal reads as 0 here; any number as small has the tensor done again. */
    if (bits && bits < 0x00800000) bits = 0x00800000;
    float value;
    memcpy(&value, &bits, 4);
    result.max_abs = value;
    if (counting) {
        int64_t padding = left ? unit - left : 0;
        result.zeros = result.saturated = -padding;
        if (!(0.0 <= c.low || 0.0 >= c.high)) result.saturated = 0;
        for (int i = 0; i < LANES; i++) {
            result.zeros += s.zeros[i];
            result.saturated += s.saturated[i];
        }
    }
    return result;
}

/* Read PAIR elements of any kind as four vectors of doubles. */
INLINE TARGET void NAMED(load_wide)(const char *data, int kind, VD x[4]) {
    VF a, b;
    if (kind == F64) {
        memcpy(x, data, 4 * sizeof *x);
        return;
    }
    if (kind == F32) { /* by halves, as they are widened: to take a vector apart takes longer than to load it */
        for (int j = 0; j < 4; j++) {
            VH half;
            memcpy(&half, data + j * sizeof half, sizeof half);
            x[j] = __builtin_convertvector(half, VD);
        }
        return;
    }
    NAMED(load)(data, kind, &a, &b);
    NAMED(widen)(a, &x[0], &x[1]);
    NAMED(widen)(b, &x[2], &x[3]);
}

/* Sums of elements of any kind in double, the zeros and saturated ones counted; NaN is not in max_abs. */
static TARGET __attribute__((noinline)) Sums NAMED(sum_doubles)(const char *data, int kind, int64_t size,
                                                                Counting c) {
    const int64_t bytes = element_bytes(kind);
    VD x[4], sums[4] = {0}, squares[4] = {0}, largest[4] = {0};
    VL zeros = {0}, saturated = {0};
    char rest[4 * WIDEST];
    if (kind != F64) c = (Counting){c.wanted, (float)c.low, (float)c.high};
    for (int64_t done = 0; done < size; done += PAIR) {
        const char *from = data + bytes * done;
        if (size - done < PAIR) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, from, (size_t)(bytes * (size - done)));
            from = rest;
        }
        NAMED(load_wide)(from, kind, x);
        for (int j = 0; j < 4; j++) {
            VD magnitude = (VD)((VL)x[j] & INT64_MAX);
            VL first = magnitude > largest[j];
            sums[j] += x[j];
            squares[j] += x[j] * x[j];
            largest[j] = (VD)(((VL)magnitude & first) | ((VL)largest[j] & ~first));
            zeros -= magnitude == 0.0;
            saturated -= (VL)(x[j] <= c.low) | (VL)(x[j] >= c.high);
        }
    }
    int64_t padding = (PAIR - size % PAIR) % PAIR;
    Sums result = {NAMED(total)(sums[0] + sums[1] + sums[2] + sums[3]),
                   NAMED(total)(squares[0] + squares[1] + squares[2] + squares[3]), 0.0, -padding,
                   0.0 <= c.low || 0.0 >= c.high ? -padding : 0};
    for (int i = 0; i < HALF; i++) {
        for (int j = 0; j < 4; j++)
            if (largest[j][i] > result.max_abs) result.max_abs = largest[j][i];
        result.zeros += zeros[i];
        result.saturated += saturated[i];
    }
    return result;
}

/* One tensor: the fast way, then the exact ones where it is not enough. */
INLINE TARGET Sums NAMED(measure)(const char *data, int kind, int64_t size, int counting, Counting c,
                                  double row[ROWS]) {
    Sums sums = {0};
    int done = 0;
    if (kind != F64) {
        if (kind == F32) sums = NAMED(sum_floats)(data, F32, size, counting, c);
        else if (kind == BF16) sums = NAMED(sum_floats)(data, BF16, size, counting, c);
        else sums = NAMED(sum_floats)(data, F16, size, counting, c);
        done = write_row(&sums, size, 1e-30, 1e-2, row);
    }
    if (!done) {
        /* What is not finite is so in double, too; what is counted besides is, in double, more exact. */
        const int is_bad = kind != F64 && !counting && !isfinite(sums.max_abs);
        set_arithmetic(IEEE);
        if (!is_bad) sums = NAMED(sum_doubles)(data, kind, size, c);
        if (is_bad || !write_row(&sums, size, 1e-270, 1e-8, row)) measure_carefully(data, kind, size, row);
        set_arithmetic(FLUSH);
    }
    return sums;
}

static TARGET void NAMED(statistics)(Job *job) {
    const int64_t count = job->count;
    double row[ROWS];
    for (int64_t i = 0; i < count; i++) {
        const int kind = job->kinds[i], real = kind & ~COMPLEX;
        const char *data = (const char *)(uintptr_t)job->pointers[i];
        const int64_t size = job->sizes[i];
        memset(row, 0, sizeof row);
        if (i + AHEAD < count && is_readable(job->kinds[i + AHEAD])) {
            const char *next = (const char *)(uintptr_t)job->pointers[i + AHEAD];
            const int64_t bytes = job->sizes[i + AHEAD] * element_bytes(job->kinds[i + AHEAD] & ~COMPLEX);
            for (int64_t at = 0; at < bytes && at < PAGE; at += LINE) __builtin_prefetch(next + at, 0, 2);
        }
        if (is_readable(kind)) {
            Counting c = {0, NAN, NAN};
            if (job->bounds) {
                c = (Counting){1, job->bounds[i], job->bounds[count + i]};
                Sums sums = NAMED(measure)(data, real, size, 1, c, row);
                job->fractions[i] = (double)sums.zeros / (double)size;
                job->fractions[count + i] = (double)sums.saturated / (double)size;
            } else {
                NAMED(measure)(data, real, size, 0, c, row);
            }
            if (kind & COMPLEX && isfinite(row[MAX_ABS])) row[MAX_ABS] = largest_modulus(data, real, size);
        }
        for (int r = 0; r < ROWS; r++) job->block[r * count + i] = row[r];
    }
}

/* Nothing is fetched from ahead: the processor does that by itself, and with both it took twice as long.
 * Of the difference of two tensors the sum of squares; or the sum of their products. `kind` and `product` are
 * constants where it is called: a question within the loop takes as long as reading an element. */
INLINE TARGET double NAMED(pair_sum)(const char *first, const char *second, int kind, int64_t size, int product) {
    const int64_t step = PAIR * element_bytes(kind);
    VD x[4], y[4], sums[4] = {0};
    char rest[8 * WIDEST];
    for (; size > 0; size -= PAIR, first += step, second += step) {
        if (size < PAIR) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, first, (size_t)(element_bytes(kind) * size));
            memcpy(rest + 4 * WIDEST, second, (size_t)(element_bytes(kind) * size));
            first = rest;
            second = rest + 4 * WIDEST;
        }
        NAMED(load_wide)(first, kind, x);
        NAMED(load_wide)(second, kind, y);
        for (int j = 0; j < 4; j++) {
            VD term = product ? y[j] : x[j] - y[j];
            sums[j] += product ? x[j] * term : term * term;
        }
    }
    return NAMED(total)(sums[0] + sums[1] + sums[2] + sums[3]);
}

static TARGET void NAMED(pairs)(int64_t count, const uint64_t *a, const uint64_t *b, const int64_t *sizes,
                                const uint8_t *kinds, int product, double *results) {
    for (int64_t i = 0; i < count; i++) {
        const int kind = kinds[i] & ~COMPLEX;
        const char *first = (const char *)(uintptr_t)a[i], *second = (const char *)(uintptr_t)b[i];
        double sum;
        if (kind == F32 && !product) sum = NAMED(pair_sum)(first, second, F32, sizes[i], 0);
        else if (kind == F32) sum = NAMED(pair_sum)(first, second, F32, sizes[i], 1);
        else sum = NAMED(pair_sum)(first, second, kind, sizes[i], product);
        results[i] = product ? sum : sqrt(sum);
    }
}

#include "sampled.h"

#undef VF
#undef VI
#undef VD
#undef VL
#undef VH
#undef HALF
#undef PAIR
#undef LANES
#undef NAMED
#undef TARGET
