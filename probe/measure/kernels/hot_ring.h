/* Appends records to the ring: a part of hot.h. The format is described in ring_format.py. */
#include <sys/stat.h>
#include <unistd.h>

enum { RING_HEADER = 4096, RECORD_HEADER = 24, RAW_HEAD = 128 };
enum { KIND_PAD = 0, KIND_RAW = 2 };
enum { CAPACITY = 2, HEAD, TAIL, NEXT_SEQ, FILE_DESCRIPTOR, DROPPED, WRITE_ERRORS, WANTED, BUSY = 13, DEVICE = 32, INODE };
enum { HAS_LOSS = 1, HAS_NORM = 2, HAS_MISSING = 4, HAS_PARAMETER_NORMS = 8, HAS_UPDATE = 16, HAS_COUNTS = 32 };

static uint64_t checksum(const uint8_t *record, int64_t bytes) {
    uint64_t sum = 0x9E3779B97F4A7C15ull, weight = 1, word;
    for (int64_t at = 8; at < bytes; at += 8, weight += 2) {
        memcpy(&word, record + at, 8);
        sum += word * weight;
    }
    return sum;
}

static void write_header(uint8_t *record, uint32_t payload, uint32_t kind, uint64_t seq, int64_t bytes) {
    memcpy(record + 8, &payload, 4);
    memcpy(record + 12, &kind, 4);
    memcpy(record + 16, &seq, 8);
    uint64_t sum = checksum(record, bytes);
    memcpy(record, &sum, 8);
}

/* Whether the descriptor is still the ring's file: the script may have closed it, and opened one of its own. */
static int is_own_file(const int64_t *header) {
    struct stat now;
    if (fstat((int)header[FILE_DESCRIPTOR], &now) != 0) return 0;
    return (uint64_t)now.st_dev == (uint64_t)header[DEVICE] && (uint64_t)now.st_ino == (uint64_t)header[INODE];
}

/* Copy a part of the ring to its file; what cannot be written is counted, and memory still has it. */
static void copy_to_file(uint8_t *ring, int64_t from, int64_t bytes) {
    int64_t *header = (int64_t *)ring;
    if (header[FILE_DESCRIPTOR] < 0) return;
    if (!is_own_file(header) || pwrite((int)header[FILE_DESCRIPTOR], ring + from, (size_t)bytes, from) != bytes)
        header[WRITE_ERRORS]++;
}

/* Make room for a record of so many bytes; returns where it goes, NULL where it does not fit. */
static uint8_t *reserve(uint8_t *ring, int64_t bytes) {
    int64_t *header = (int64_t *)ring, capacity = header[CAPACITY], at = header[HEAD] % capacity;
    if (header[BUSY]) return NULL; /* Python is appending: this came in the middle of it */
    int64_t rest = at + bytes > capacity ? capacity - at : 0;
    if (header[HEAD] + rest + bytes - header[TAIL] > capacity) {
        header[DROPPED]++;
        header[WANTED] = 1;
        return NULL;
    }
    if (rest >= RECORD_HEADER) {
        uint8_t *padding = ring + RING_HEADER + at;
        memset(padding, 0, (size_t)rest);
        write_header(padding, (uint32_t)(rest - RECORD_HEADER), KIND_PAD, 0, rest);
        copy_to_file(ring, RING_HEADER + at, rest);
    }
    header[HEAD] += rest;
    return ring + RING_HEADER + header[HEAD] % capacity;
}

/* The file's header is left as it is: who reads the file goes by the numbers of the records, and finds this one. To
 * write it too would take 3 us of each step. */
static void commit(uint8_t *ring, uint8_t *record, int64_t bytes) {
    int64_t *header = (int64_t *)ring;
    copy_to_file(ring, record - ring, bytes);
    /* Who reads the file of a killed process takes a torn record that is counted for a loss. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    header[HEAD] += bytes;
    header[NEXT_SEQ]++;
    if (2 * (header[HEAD] - header[TAIL]) >= header[CAPACITY]) header[WANTED] = 1;
}

static void put(uint8_t **place, const void *value, size_t bytes) {
    memcpy(*place, value, bytes);
    *place += bytes;
}

static void put_number(uint8_t **place, int64_t value) { put(place, &value, 8); }

static void put_double(uint8_t **place, double value) { put(place, &value, 8); }

static void put_row(uint8_t **place, const double *row, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float value = (float)row[i];
        put(place, &value, 4);
    }
}

/* One bit for each gradient that is missing, the first in the highest bit of a byte, as numpy.packbits has it. */
static void put_missing(uint8_t **place, int64_t count) {
    memset(*place, 0, (size_t)(count + 7) / 8);
    for (int64_t i = 0; i < count; i++)
        if (hot_memory.kinds[i] == MISSING) (*place)[i / 8] |= (uint8_t)(0x80 >> i % 8);
    *place += (count + 7) / 8;
}

/* The least share of a norm that clipping takes, as step/clipping.py has it. */
#define CLIPPED_BY 1e-6

/* By how much a divisor of the loss may be off a whole number, as step/losses.py has it. */
#define ROUNDING 1e-6

#include "hot_phases.h"

/* Scalars of a record, in the order of the template: step_time_s, probe_fraction, what clipping left of the norm
 * and whether it changed it, the phases, then the learning rates and what Python reads. */
enum { OWN_SCALARS = 4 + PHASES };

/* The least share of the items that a trainer divides by, see step/losses.py. */
#define LEAST_SHARE 0.5

/* Whether a micro-step has a loss of the kind that began with micro-step `first`. */
static int has_graph_of(int64_t at, int64_t first) { return hot_loop.micro[at].graph_kind == first; }
static int has_line_of(int64_t at, int64_t first) { return hot_loop.micro[at].line_kind == first; }

/* The sum of the losses of one kind, in the order of the micro-steps. */
static double sum_of(int (*is_of)(int64_t, int64_t), int64_t first, double *count) {
    double sum = 0.0;
    *count = 0.0;
    for (int64_t i = first; i < hot_loop.micro_steps; i++)
        if (is_of(i, first)) {
            sum += hot_calls[i].value;
            *count += 1.0;
        }
    return sum;
}

/* What losses with equal graphs were divided by for being accumulated, NAN if they were not. */
static double accumulated(int64_t first, double count) {
    const double divisor = hot_calls[first].divisor;
    for (int64_t i = first; i < hot_loop.micro_steps; i++)
        if (has_graph_of(i, first) && !(hot_calls[i].divisor == divisor)) return NAN;
    if (fabs(divisor - count) <= ROUNDING * fmax(fabs(divisor), count)) hot.accumulation = divisor;
    return divisor == hot.accumulation ? divisor : NAN;
}

/* Whether sums over the items of micro-steps were divided by the number of items in all of them. */
static int is_divided_by_items(int64_t first, double count) {
    double shares = 0.0;
    for (int64_t i = first; i < hot_loop.micro_steps; i++)
        if (has_graph_of(i, first)) shares += hot_calls[i].share;
    return count >= 2 && shares >= LEAST_SHARE && shares <= sqrt(count);
}

/* The loss of losses with equal graphs: their mean, with the divisor undone, or their sum. As `LossMeter._parts`. */
static double loss_of_graph(int64_t first) {
    double count = 0.0, value = 0.0;
    const double sum = sum_of(has_graph_of, first, &count), divisor = accumulated(first, count);
    if (!isnan(divisor)) return sum * divisor / count;
    if (is_divided_by_items(first, count)) return sum;
    for (int64_t i = first; i < hot_loop.micro_steps; i++)
        if (hot_loop.micro[i].line_kind == i && has_graph_of(i, first)) {
            const double of_line = sum_of(has_line_of, i, &count);
            value += of_line / count;
        }
    return value;
}

/* The loss of the step, and the sum as backward saw it. */
static void put_losses(uint8_t **place) {
    double value = 0.0, raw = 0.0;
    for (int64_t i = 0; i < hot_loop.micro_steps; i++) {
        if (has_graph_of(i, i)) value += loss_of_graph(i);
        raw += hot_calls[i].raw;
    }
    put_double(place, value);
    put_double(place, raw);
}

/* Scalars that Python reads at every step; 0 where it cannot. */
static int read_scalars(double *values) {
    if (hot_loop.scalar_count == 0) return 1;
    Object *read = call_quietly(hot_loop.scalars, NULL, 0);
    int is_read = read && type_of(read) == hot_api.tuple_type && hot_api.tuple_size(read) == hot_loop.scalar_count;
    for (int64_t i = 0; is_read && i < hot_loop.scalar_count; i++)
        values[i] = hot_api.as_float(hot_api.tuple_item(read, i));
    if (read) hot_api.release(read);
    return is_read;
}

/* Write the record of the step that is about to be updated; 0 where the ring has no room for it. */
static int append_step(const double *rates, int64_t started) {
    const int64_t rows = hot_loop.bad_gradients ? ROWS : STD + 1; /* NaN and Inf are counted where there are some */
    const int64_t n = hot_loop.parameter_count, scalars = OWN_SCALARS + hot_loop.rate_count + hot_loop.scalar_count + !!hot_loop.is_distributed;
    double further[MAX_SCALARS], samples = 0.0;
    if (!read_scalars(further)) return 0;
    for (int64_t i = 0; i < hot_loop.micro_steps; i++) samples += (double)hot_calls[i].samples;
    int64_t elements = 0, missing = 0, flags = HAS_LOSS;
    for (int64_t i = 0; i < hot_loop.micro_steps; i++) elements += hot_calls[i].elements;
    for (int64_t i = 0; i < n; i++) missing += hot_memory.kinds[i] == MISSING;
    if (missing) flags |= HAS_MISSING;
    if (missing < n) flags |= HAS_NORM;
    if (is_norms_step()) flags |= HAS_PARAMETER_NORMS;
    if (is_ratios_step(hot.step)) flags |= HAS_UPDATE;
    if (hot_loop.bad_gradients) flags |= HAS_COUNTS;
    int64_t payload = RAW_HEAD + 8 * scalars + 4 * rows * n + (missing ? (n + 7) / 8 : 0) + (is_norms_step() ? 4 * n : 0);
    int64_t bytes = RECORD_HEADER + (payload + 7) / 8 * 8;
    uint8_t *record = reserve(hot_loop.ring, bytes);
    if (record == NULL) return 0;
    memset(record + bytes - 8, 0, 8);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint8_t *place = record + RECORD_HEADER;
    put_number(&place, hot.step);
    put_double(&place, (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec);
    put_number(&place, hot_loop.template_id);
    put_number(&place, n);
    put_losses(&place);
    put_double(&place, hot.total_norm);
    put_double(&place, samples);
    put_number(&place, flags);
    put_number(&place, scalars);
    put_number(&place, elements);
    for (int i = 0; i < 5; i++) put_number(&place, 0);
    uint8_t *times = place;
    place += 16;
    put_double(&place, hot_loop.clips ? hot.after_clip : NAN);
    put_double(&place, hot_loop.clips ? hot.after_clip < hot.before_clip * (1 - CLIPPED_BY) : NAN);
    put_phases(&place);
    put(&place, rates, (size_t)hot_loop.rate_count * 8);
    put(&place, further, (size_t)hot_loop.scalar_count * 8);
    if (hot_loop.is_distributed) put_double(&place, hot.before_backward_ns ? (double)hot.before_backward_ns / 1e9 : NAN);
    for (int row = NORM; row < rows; row++) put_row(&place, hot_memory.block + row * n, n);
    if (missing) put_missing(&place, n);
    if (is_norms_step()) put_row(&place, hot_memory.parameter_block + NORM * n, n);
    const int64_t end = now_ns(), step_ns = end - hot.last_end_ns;
    hot.step_own_ns += end - started;
    put_double(&times, (double)step_ns / 1e9);
    put_double(&times, (double)hot.step_own_ns / (double)step_ns);
    write_header(record, (uint32_t)payload, KIND_RAW, (uint64_t)((int64_t *)hot_loop.ring)[NEXT_SEQ], bytes);
    commit(hot_loop.ring, record, bytes);
    hot.last_end_ns = hot.free_since_ns = end;
    hot.own_ns += hot.step_own_ns;
    hot.step_own_ns = 0;
    hot.step++;
    hot.steps++;
    return 1;
}
