/* Bins of magnitudes and the bits that they are counted by: a part of kernel.c.
 *
 * Most edges are powers of two, so most elements need no more than their octave, the exponent of a float. The
 * few edges inside of octaves are counted apart, where an octave that has one is met. All counts are exact.
 */

enum { MAX_BINS = 128, OCTAVES = 256, TABLES = 8, TABLE = OCTAVES + 16, COUNTED = 1024 };
enum { FRACTION_BITS = 23, FRACTION = (1 << FRACTION_BITS) - 1, FLOAT_INF = 0x7f800000 };
/* Elements below which counting one by one is quicker than clearing and adding up tables, and those after which
 * these are added up: no counter of 32 bits overflows. */
enum { COUNTED_ONE_BY_ONE = 512, PIECE = 1 << 20 };

typedef struct {
    const uint32_t *edges; /* (bins - 1,) and one above all; bin k holds edges[k - 1] <= bits < edges[k] */
    int64_t bins;
    uint8_t first[OCTAVES];   /* bin of each octave's smallest magnitude */
    uint8_t inside[MAX_BINS]; /* indices of the edges that do not begin an octave */
    int inside_count;
} Bins;

static void prepare_bins(Bins *bins, int64_t count, const uint32_t *edges) {
    *bins = (Bins){.edges = edges, .bins = count};
    for (uint32_t octave = 0; octave < OCTAVES; octave++)
        for (int64_t k = 0; k < count - 1; k++) bins->first[octave] += edges[k] <= octave << FRACTION_BITS;
    for (int64_t k = 0; k < count - 1; k++)
        if (edges[k] & FRACTION) bins->inside[bins->inside_count++] = (uint8_t)k;
}

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

INLINE void count_one_by_one(const char *data, int kind, int64_t size, const Bins *bins, int64_t *row) {
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits = magnitude_bits(data, kind, i);
        int bin = bins->first[bits >> FRACTION_BITS];
        while (bits >= bins->edges[bin]) bin++;
        row[bin]++;
    }
}
