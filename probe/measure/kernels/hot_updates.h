/* How far an update moves each parameter: a part of hot.h, as update_meter.py does it in the slow way.
 *
 * At every `ratios_every`th step the parameters that are to be updated are copied to where Python has made room for
 * them, and compared after the update. What is found goes into a record of its own, behind that of its step.
 */
enum { UPDATE_HEAD = 48, KIND_UPDATE = 4 };
/* From so many bytes on they are copied past the caches. */
enum { ASIDE_BYTES = 1 << 16 };

/* What is known of one parameter while it is updated. */
typedef struct {
    void *pointer;
    int64_t size;
    double norm;
    uint8_t kind, is_contiguous;
} Copied;

static struct {
    Copied *copied;
    double *ratios;
    int64_t room, step;
} updates = {.step = -1};

static int make_room_for_updates(int64_t count) {
    if (count <= updates.room) return 1;
    Copied *copied = calloc((size_t)count, sizeof *copied);
    double *ratios = calloc((size_t)count, sizeof *ratios);
    if (copied == NULL || ratios == NULL) {
        free(copied);
        free(ratios);
        return 0;
    }
    free(updates.copied);
    free(updates.ratios);
    updates.copied = copied;
    updates.ratios = ratios;
    updates.room = count;
    return 1;
}

/* One parameter, as `find_parameters` has found it. */
static Copied found_at(int64_t at) {
    return (Copied){.kind = hot_memory.parameter_kinds[at], .pointer = (void *)(uintptr_t)hot_memory.pointers[at],
                    .size = hot_memory.sizes[at], .is_contiguous = hot_memory.contiguous[at]};
}

/* Copy what is read again only behind the update: past the caches, which training needs, and without fetching what
 * was there before. Of what is small that is not worth it. */
static void copy_aside(char *to, const char *from, size_t bytes) {
#if defined(__x86_64__)
    if (bytes >= ASIDE_BYTES) {
        const size_t head = -(uintptr_t)to % LINE;
        memcpy(to, from, head);
        for (to += head, from += head, bytes -= head; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE)
            for (int i = 0; i < LINE; i += 16)
                _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        _mm_sfence();
    }
#endif
    memcpy(to, from, bytes);
}

/* Copy the parameters that have a gradient and a place; they have just been looked up and measured. */
static void copy_parameters(int64_t step) {
    const int64_t count = hot_loop.parameter_count;
    updates.step = -1;
    if (!make_room_for_updates(count)) return;
    for (int64_t i = 0; i < count; i++) {
        Copied *one = &updates.copied[i];
        *one = found_at(i);
        if (hot_memory.kinds[i] == MISSING || hot_loop.copies[i] == NULL) one->kind = MISSING;
        if (one->kind == MISSING) continue;
        const int64_t bytes = one->size * element_bytes(one->kind);
        if (bytes != hot_loop.copy_bytes[i]) { /* given another size or type since its place was made */
            one->kind = MISSING;
            continue;
        }
        one->norm = hot_memory.parameter_block[NORM * count + i];
        copy_aside(hot_loop.copies[i], one->pointer, (size_t)bytes);
    }
    updates.step = step;
}

/* The L2 norm of a difference, where its squares are too large or too small to be added. */
static double difference_norm(const char *new, const char *old, int kind, int64_t size) {
    double largest = 0.0, sum = 0.0;
    for (int64_t i = 0; i < size; i++) {
        const double one = fabs(value_at(new, kind, i) - value_at(old, kind, i));
        if (isnan(one)) return one;
        if (one > largest) largest = one;
    }
    if (!(largest > 0.0) || isinf(largest)) return largest;
    for (int64_t i = 0; i < size; i++) {
        const double one = (value_at(new, kind, i) - value_at(old, kind, i)) / largest;
        sum += one * one;
    }
    return sqrt(sum) * largest;
}

/* As tensor_measures.py has it. */
static int is_doubtful(double norm, int kind) {
    if (norm == 0.0) return kind == F64;
    return !(norm > 1e-140 && isfinite(norm));
}

/* Norm of the change of one parameter; negative where it cannot be compared. */
static double change_of(int64_t at) {
    const Copied before = updates.copied[at], after = found_at(at);
    const int is_same = after.pointer == before.pointer || (after.is_contiguous && before.is_contiguous);
    if (after.kind != before.kind || after.size != before.size || !is_same) return -1.0;
    const uint64_t new = (uint64_t)(uintptr_t)after.pointer, old = (uint64_t)(uintptr_t)hot_loop.copies[at];
    double norm = 0.0;
    nanscope_pairs(1, &new, &old, &after.size, &after.kind, 0, &norm);
    if (!is_doubtful(norm, after.kind)) return norm;
    return difference_norm(after.pointer, hot_loop.copies[at], after.kind, after.size);
}

/* Compare, and write the record. There is no ratio for a parameter that was not copied, or was 0. */
static void measure_update(void) {
    const int64_t count = hot_loop.parameter_count, step = updates.step;
    double changes = 0.0, lengths = 0.0;
    updates.step = -1;
    find_parameters();
    for (int64_t i = 0; i < count; i++) {
        const Copied *one = &updates.copied[i];
        const double change = one->kind == MISSING ? -1.0 : change_of(i);
        updates.ratios[i] = 0.0;
        hot_memory.kinds[i] = MISSING;
        if (change < 0.0) continue;
        changes += change * change;
        lengths += one->norm * one->norm;
        if (one->norm == 0.0) continue;
        updates.ratios[i] = isnan(change / one->norm) ? NAN : change / one->norm; /* of one bit pattern */
        hot_memory.kinds[i] = one->kind;
    }
    const int64_t payload = UPDATE_HEAD + 8 * count + (count + 7) / 8;
    const int64_t bytes = RECORD_HEADER + (payload + 7) / 8 * 8;
    uint8_t *record = reserve(hot_loop.ring, bytes);
    if (record == NULL) return;
    memset(record + bytes - 8, 0, 8);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint8_t *place = record + RECORD_HEADER;
    put_number(&place, step);
    put_double(&place, (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec);
    put_number(&place, hot_loop.template_id);
    put_number(&place, count);
    put_double(&place, lengths != 0.0 ? sqrt(changes) / sqrt(lengths) : NAN);
    put_number(&place, 0);
    put(&place, updates.ratios, (size_t)count * 8);
    put_missing(&place, count);
    write_header(record, (uint32_t)payload, KIND_UPDATE, (uint64_t)((int64_t *)hot_loop.ring)[NEXT_SEQ], bytes);
    commit(hot_loop.ring, record, bytes);
}
