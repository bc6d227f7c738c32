/* The least that a pass over gradients can be, for bench_pass.py and smallest_sampled.py: no kinds of elements, no check, no rows.
 *
 * `smallest` gives what a record needs of float32 tensors (sum, sum of squares, largest), `read_only` just reads. Both
 * with four readers side by side, as wide as the processor that compiles it has vectors. Sums stay in float.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16, READERS = 4 };
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

static float add_up(Floats lanes) {
    float sums[LANES];
    memcpy(sums, &lanes, sizeof sums);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

static void add(Floats *sum, Floats *squares, Ints *largest, const char *data) {
    Floats x;
    memcpy(&x, data, sizeof x);
    Ints magnitude = (Ints)x & 0x7fffffff, more = magnitude > *largest;
    *sum += x;
    *squares += x * x;
    *largest = (magnitude & more) | (*largest & ~more);
}

static void pass_over(const char *data, int64_t size, double *results) {
    Floats sums[READERS] = {0}, squares[READERS] = {0};
    Ints largest[READERS] = {0};
    const int64_t vector = sizeof(Floats), apart = size / (READERS * LANES) * vector;
    for (int64_t at = 0; at < apart; at += vector)
        for (int r = 0; r < READERS; r++) add(&sums[r], &squares[r], &largest[r], data + r * apart + at);
    int64_t left = size - READERS * apart / 4;
    for (data += READERS * apart; left >= LANES; left -= LANES, data += vector)
        add(&sums[0], &squares[0], &largest[0], data);
    float sum = add_up((sums[0] + sums[1]) + (sums[2] + sums[3])), most;
    float square = add_up((squares[0] + squares[1]) + (squares[2] + squares[3]));
    int32_t bits = 0;
    for (int r = 0; r < READERS; r++)
        for (int i = 0; i < LANES; i++) bits = largest[r][i] > bits ? largest[r][i] : bits;
    memcpy(&most, &bits, sizeof most);
    const float *rest = (const float *)data;
    for (int64_t i = 0; i < left; i++) {
        sum += rest[i];
        square += rest[i] * rest[i];
        most = fmaxf(most, fabsf(rest[i]));
    }
    results[0] = sqrtf(square);
    results[1] = most;
    results[2] = sum / (float)size;
}

/* (count, 3) norms, largest magnitudes and means. */
void smallest(int64_t count, const uint64_t *pointers, const int64_t *sizes, double *results) {
    for (int64_t i = 0; i < count; i++) pass_over((const char *)(uintptr_t)pointers[i], sizes[i], results + 3 * i);
}

/* Whether any bit is set, which nobody wants to know. */
int read_only(int64_t count, const uint64_t *pointers, const int64_t *sizes) {
    Ints any[READERS] = {0}, x;
    int32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *data = (const char *)(uintptr_t)pointers[i];
        const int64_t apart = sizes[i] / (READERS * LANES) * sizeof x;
        for (int64_t at = 0; at < apart; at += sizeof x)
            for (int r = 0; r < READERS; r++) {
                memcpy(&x, data + r * apart + at, sizeof x);
                any[r] |= x;
            }
        const int32_t *rest = (const int32_t *)(data + READERS * apart);
        for (int64_t at = 0; at < sizes[i] - READERS * apart / 4; at++) found |= rest[at];
    }
    any[0] |= any[1] | any[2] | any[3];
    for (int i = 0; i < LANES; i++) found |= any[0][i];
    return found;
}

/* What an update is compared with afterwards. */
void copy_all(int64_t count, const uint64_t *pointers, const int64_t *sizes, const uint64_t *places) {
    for (int64_t i = 0; i < count; i++)
        memcpy((void *)(uintptr_t)places[i], (const void *)(uintptr_t)pointers[i], (size_t)sizes[i] * sizeof(float));
}

/* (count,) norms of the differences. */
void compare_all(int64_t count, const uint64_t *pointers, const int64_t *sizes, const uint64_t *places, double *results) {
    for (int64_t i = 0; i < count; i++) {
        const float *new = (const float *)(uintptr_t)pointers[i], *old = (const float *)(uintptr_t)places[i];
        Floats squares = {0}, x, y;
        int64_t at = 0;
        for (; at + LANES <= sizes[i]; at += LANES) {
            memcpy(&x, new + at, sizeof x);
            memcpy(&y, old + at, sizeof y);
            squares += (x - y) * (x - y);
        }
        float sum = add_up(squares);
        for (; at < sizes[i]; at++) sum += (new[at] - old[at]) * (new[at] - old[at]);
        results[i] = sqrtf(sum);
    }
}
