/* The passes of what is measured at sampled steps, for one vector width: included by passes.h. */

typedef int32_t NAMED(vq) __attribute__((vector_size(2 * LANES)));
#define VQ NAMED(vq)

/* Two vectors' bits of |x| as floats; those of a double below the floats' normal range are left to the caller. */
INLINE TARGET VL NAMED(narrow_bits)(VL wide, VL *is_low) {
    VL bits = (wide >> (52 - FRACTION_BITS)) - ((int64_t)(1023 - 127) << FRACTION_BITS);
    VL is_high = bits >= FLOAT_INF, is_inf = wide == 0x7ff0000000000000, is_nan = wide > 0x7ff0000000000000;
    VL high = FLOAT_INF - 1 - is_inf + (is_nan & 0x400001);
    *is_low |= (bits <= FRACTION) & (wide != 0);
    return (high & is_high) | (bits & ~is_high & (wide != 0));
}

/* Write the bits of `size` magnitudes, and zeros up to a full vector; returns whether any is not 0. */
INLINE TARGET int NAMED(write_bits)(const char *data, int kind, int64_t size, uint32_t bits[COUNTED]) {
    const char *begin = data;
    const int64_t step = PAIR * element_bytes(kind);
    /* Without wide vectors there is no comparison of 64-bit integers. */
    const int64_t whole = kind == F64 && LANES == 4 ? 0 : size / PAIR * PAIR;
    VI any = {0};
    VL any_wide = {0}, is_low = {0};
    for (int64_t i = 0; i < whole; i += PAIR, data += step) {
        if (kind == F64) {
            VL wide[4];
            memcpy(wide, data, sizeof wide);
            for (int j = 0; j < 4; j++) {
                any_wide |= wide[j] & INT64_MAX;
                VQ part = __builtin_convertvector(NAMED(narrow_bits)(wide[j] & INT64_MAX, &is_low), VQ);
                memcpy(bits + i + j * HALF, &part, sizeof part);
            }
            continue;
        }
        VF x[2];
        NAMED(load)(data, kind, &x[0], &x[1]);
        VI first = (VI)x[0] & 0x7fffffff, second = (VI)x[1] & 0x7fffffff;
        any |= first | second;
        memcpy(bits + i, &first, sizeof first);
        memcpy(bits + i + LANES, &second, sizeof second);
    }
    int found = 0, has_low = 0;
    for (int i = 0; i < LANES; i++) found |= any[i] != 0;
    for (int i = 0; i < HALF; i++) {
        found |= any_wide[i] != 0;
        has_low |= is_low[i] != 0;
    }
    for (int64_t i = has_low ? 0 : whole; i < size; i++) {
        bits[i] = magnitude_bits(begin, kind, i);
        found |= bits[i] != 0;
    }
    for (int64_t i = size; i % LANES; i++) bits[i] = 0;
    return found;
}

/* Number of low <= bits <= high. */
INLINE TARGET int64_t NAMED(count_between)(const uint32_t *bits, int64_t size, int32_t low, int32_t high) {
    VI found = {0}, x;
    int64_t sum = 0;
    for (int64_t i = 0; i < size; i += LANES) {
        memcpy(&x, bits + i, sizeof x);
        found -= (x >= low) & (x <= high);
    }
    for (int i = 0; i < LANES; i++) sum += found[i];
    return sum;
}

/* Add at most PIECE elements to the (bins,) counts of a tensor's magnitudes. */
static TARGET void NAMED(histogram)(const char *data, int kind, int64_t size, const Bins *bins, int64_t *row) {
    /* Several, for equal magnitudes come in runs, and a counter is not read again before it is written. */
    uint32_t counts[TABLES][TABLE] = {{0}}, totals[OCTAVES] = {0}, seen[MAX_BINS] = {0};
    uint32_t bits[COUNTED] __attribute__((aligned(LINE)));
    for (int64_t n; size > 0; size -= n, data += n * element_bytes(kind)) {
        int any;
        n = size < COUNTED ? size : COUNTED;
        if (kind == F32) any = NAMED(write_bits)(data, F32, n, bits);
        else if (kind == F64) any = NAMED(write_bits)(data, F64, n, bits);
        else if (kind == BF16) any = NAMED(write_bits)(data, BF16, n, bits);
        else any = NAMED(write_bits)(data, F16, n, bits);
        if (!any) {
            row[bins->first[0]] += n;
            continue;
        }
        int64_t i = 0;
        for (; i + TABLES <= n; i += TABLES)
            for (int t = 0; t < TABLES; t++) counts[t][bits[i + t] >> FRACTION_BITS]++;
        for (; i < n; i++) counts[i % TABLES][bits[i] >> FRACTION_BITS]++;
        for (int e = 0; e < bins->inside_count; e++) {
            const int k = bins->inside[e];
            const uint32_t edge = bins->edges[k], octave = edge >> FRACTION_BITS;
            uint32_t total = 0;
            for (int t = 0; t < TABLES; t++) total += counts[t][octave];
            if (total == seen[e]) continue;
            seen[e] = total;
            int64_t above = NAMED(count_between)(bits, n, (int32_t)edge, (int32_t)(edge | FRACTION));
            row[k] -= above;
            row[k + 1] += above;
        }
    }
    for (int t = 0; t < TABLES; t++)
        for (int octave = 0; octave < OCTAVES; octave++) totals[octave] += counts[t][octave];
    for (int octave = 0; octave < OCTAVES; octave++)
        if (totals[octave]) row[bins->first[octave]] += totals[octave];
}

/* Whether some of `size` elements of any type, a multiple of PAIR, is not +0. */
INLINE TARGET int NAMED(has_bits)(const char *data, int64_t bytes) {
    VI any = {0}, x;
    int found = 0;
    for (int64_t i = 0; i < bytes; i += sizeof x) {
        memcpy(&x, data + i, sizeof x);
        any |= x;
    }
    for (int i = 0; i < LANES; i++) found |= any[i] != 0;
    return found;
}

INLINE TARGET void NAMED(add_products)(const char *a, const char *b, int kind, VD squares[4], VD products[4]) {
    VD x[4], y[4];
    NAMED(load_wide)(a, kind, x);
    NAMED(load_wide)(b, kind, y);
    for (int j = 0; j < 4; j++) {
        squares[j] += x[j] * x[j];
        products[j] += x[j] * y[j];
    }
}

INLINE TARGET void NAMED(turn_kind)(const char *new, char *old, int kind, int64_t size, uint8_t *marks,
                                    double sums[2]) {
    const int64_t bytes = element_bytes(kind);
    VD squares[4] = {0}, products[4] = {0};
    for (; size >= MARKED; size -= MARKED, new += MARKED * bytes, old += MARKED * bytes) {
        const int any = NAMED(has_bits)(new, MARKED * bytes);
        uint8_t unmarked = 1, *mark = marks ? marks++ : &unmarked;
        /* Zeros by zeros: most of an embedding's gradient, of which nothing but the new one is read. */
        if (!any && !*mark) continue;
        *mark = (uint8_t)any;
        for (int64_t i = 0; i < MARKED * bytes; i += PAIR * bytes)
            NAMED(add_products)(new + i, old + i, kind, squares, products);
        memcpy(old, new, (size_t)(MARKED * bytes));
    }
    for (int64_t n; size > 0; size -= n, new += n * bytes, old += n * bytes) {
        char rest[8 * WIDEST] = {0};
        n = size < PAIR ? size : PAIR;
        memcpy(rest, new, (size_t)(bytes * n));
        memcpy(rest + 4 * WIDEST, old, (size_t)(bytes * n));
        NAMED(add_products)(rest, rest + 4 * WIDEST, kind, squares, products);
        memcpy(old, new, (size_t)(bytes * n));
    }
    sums[0] = NAMED(total)(squares[0] + squares[1] + squares[2] + squares[3]);
    sums[1] = NAMED(total)(products[0] + products[1] + products[2] + products[3]);
}

/* Sums of new * new and of new * old, of 16 or 32 bits; afterwards `old` holds what `new` does. `marks` may be
 * NULL: for each MARKED elements of `old`, 0 where they are known to be +0; kept up to date. */
static TARGET void NAMED(turn)(const char *new, char *old, int kind, int64_t size, uint8_t *marks,
                               double sums[2]) {
    if (kind == F32) NAMED(turn_kind)(new, old, F32, size, marks, sums);
    else if (kind == BF16) NAMED(turn_kind)(new, old, BF16, size, marks, sums);
    else NAMED(turn_kind)(new, old, F16, size, marks, sums);
}

INLINE TARGET void NAMED(moments_kind)(const char *first, const char *second, int kind, int64_t size, float eps,
                                       double sums[3]) {
    const int64_t bytes = element_bytes(kind);
    float m[BLOCK * PAIR] __attribute__((aligned(LINE))), v[BLOCK * PAIR] __attribute__((aligned(LINE)));
    VD x[4], totals[3][4] = {0};
    for (int64_t n; size > 0; size -= n, first += n * bytes, second += n * bytes) {
        n = size < BLOCK * PAIR ? size : BLOCK * PAIR;
        const int64_t full = n / PAIR * PAIR, whole = (n + PAIR - 1) / PAIR * PAIR;
        /* Rows of an embedding that were never used: 0 / (0 + eps). */
        if (eps > 0 && n == BLOCK * PAIR && !NAMED(has_bits)(first, n * bytes) &&
            !NAMED(has_bits)(second, n * bytes))
            continue;
        for (int64_t i = 0; i < full; i += PAIR) {
            VF part[2];
            NAMED(load)(first + i * bytes, kind, &part[0], &part[1]);
            memcpy(m + i, part, sizeof part);
            NAMED(load)(second + i * bytes, kind, &part[0], &part[1]);
            memcpy(v + i, part, sizeof part);
        }
        for (int64_t i = full; i < whole; i++) {
            m[i] = i < n ? (float)value_at(first, kind, i) : 0.0f;
            v[i] = i < n ? (float)value_at(second, kind, i) : 0.0f;
        }
        for (int64_t i = 0; i < whole; i += PAIR)
            for (int s = 0; s < 2; s++) {
                NAMED(load_wide)((const char *)((s ? v : m) + i), F32, x);
                for (int j = 0; j < 4; j++) totals[s][j] += x[j] * x[j];
            }
        for (int64_t i = 0; i < n; i++) m[i] /= sqrtf(v[i]) + eps;
        for (int64_t i = 0; i < whole; i += PAIR) {
            NAMED(load_wide)((const char *)(m + i), F32, x);
            for (int j = 0; j < 4; j++) totals[2][j] += x[j] * x[j];
        }
    }
    for (int s = 0; s < 3; s++)
        sums[s] = NAMED(total)(totals[s][0] + totals[s][1] + totals[s][2] + totals[s][3]);
}

/* Sums of squares: of two moments of 16 or 32 bits, and of first / (sqrt(second) + eps). */
static TARGET void NAMED(moments)(const char *first, const char *second, int kind, int64_t size, float eps,
                                  double sums[3]) {
    if (kind == F32) NAMED(moments_kind)(first, second, F32, size, eps, sums);
    else if (kind == BF16) NAMED(moments_kind)(first, second, BF16, size, eps, sums);
    else NAMED(moments_kind)(first, second, F16, size, eps, sums);
}

#undef VQ
