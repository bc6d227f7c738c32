/* What the modules of a step have returned, as the columns of a frame: a part of kernel.c.
 *
 * For the usual step, of which C has measured all outputs and no module has two: then no numbers are to be joined.
 * Any other is arranged by module_statistics.py, which says what the columns mean. Here it takes a few microseconds,
 * where numpy's functions, met with cold caches, take half a millisecond.
 */

/* In the order of module_statistics.py; the last one is Python's. */
enum { CALLS_COLUMN, RMS_COLUMN, NANS_COLUMN = 7, INFS_COLUMN, UNITS_COLUMN, DEAD_UNITS_COLUMN, COLUMN_COUNT };
/* As module_frames.py numbers them. */
enum { STATE_OBSERVED, STATE_NOT_CALLED, STATE_COMPILED, STATE_NO_TENSOR };
/* What becomes of a column in a frame; mirrored by call_binding.py. */
enum { LEFT_OUT, WITHOUT_GAPS, WITH_GAPS };

/* Places in the bytes that Python is given; arrays have a place for each module. Mirrored by call_binding.py. */
typedef struct {
    int64_t *head;            /* rows, modules in `whole`, modules in `partly` */
    double *block;            /* (COLUMN_COUNT, rows); 0 where there is a gap */
    int64_t *whole, *units;   /* modules with units that were all active, and how many they have */
    int64_t *partly, *places; /* other modules with units, and where their activity lies */
    uint8_t *gaps;            /* (COLUMN_COUNT, rows) */
    uint8_t *states, *activity;
} CallColumns;

static CallColumns columns_in(char *memory, int64_t rows) {
    CallColumns in = {.head = (int64_t *)memory};
    in.block = (double *)(in.head + 3);
    in.whole = (int64_t *)(in.block + COLUMN_COUNT * rows);
    in.units = in.whole + rows;
    in.partly = in.units + rows;
    in.places = in.partly + rows;
    in.gaps = (uint8_t *)(in.places + rows);
    in.states = in.gaps + COLUMN_COUNT * rows;
    in.activity = in.states + rows;
    return in;
}

static void put_output(CallColumns *columns, int64_t row, int64_t number) {
    const Output *output = &observed.outputs[number];
    const int64_t rows = columns->head[0];
    const double values[] = {output->row[NORM] / sqrt(output->elements > 1 ? (double)output->elements : 1.0),
                             output->row[MAX_ABS], output->row[MEAN], output->row[STD], output->zeros,
                             output->saturated, output->row[NAN_COUNT], output->row[INF_COUNT]};
    for (int64_t i = RMS_COLUMN; i < UNITS_COLUMN; i++) {
        columns->block[i * rows + row] = values[i - RMS_COLUMN];
        columns->gaps[i * rows + row] = 0;
    }
    if (output->units == 0) return;
    columns->block[UNITS_COLUMN * rows + row] = (double)output->units;
    columns->gaps[UNITS_COLUMN * rows + row] = 0;
    const int is_whole = output->activity < 0;
    const int64_t at = columns->head[is_whole ? 1 : 2]++;
    (is_whole ? columns->whole : columns->partly)[at] = row;
    (is_whole ? columns->units : columns->places)[at] = is_whole ? output->units : output->activity;
}

/* Fill the columns, but for the dead units; 0 where Python has to. */
static int fill_columns(CallColumns *columns) {
    const int64_t rows = columns->head[0];
    for (int64_t i = 0; i < observed.call_count; i++) {
        const Call *call = &observed.calls[i];
        const int64_t row = call->row;
        if (call->flags & CALL_IS_COMPILED || row >= rows) return 0;
        if (call->state != CALL_DONE) continue;
        columns->block[CALLS_COLUMN * rows + row] += 1.0;
        columns->gaps[CALLS_COLUMN * rows + row] = 0;
        if (call->output < 0) {
            if (columns->states[row] != STATE_OBSERVED) columns->states[row] = STATE_NO_TENSOR;
            continue;
        }
        if (columns->states[row] == STATE_OBSERVED) return 0;
        columns->states[row] = STATE_OBSERVED;
        put_output(columns, row, call->output);
    }
    return 1;
}

/* columns(rows): what was noted since the step began, as a bytearray; None where Python has to arrange it. */
static Object *calls_columns(Object *self, Object *number) {
    (void)self;
    const int64_t rows = call_api.as_int(number), before = 8 * (3 + (COLUMN_COUNT + 4) * rows) + (COLUMN_COUNT + 1) * rows;
    if (rows <= 0 || observed.call_count == 0) return nothing();
    Object *made = call_api.new_bytes(NULL, (ptrdiff_t)(before + observed.activity_bytes));
    if (made == NULL) {
        settle_error();
        return nothing();
    }
    char *memory = call_api.bytes_of(made);
    CallColumns columns = columns_in(memory, rows);
    memset(memory, 0, (size_t)before);
    memset(columns.gaps, 1, (size_t)(COLUMN_COUNT * rows));
    memset(columns.states, STATE_NOT_CALLED, (size_t)rows);
    columns.head[0] = rows;
    if (observed.activity_bytes) memcpy(columns.activity, observed.activity, (size_t)observed.activity_bytes);
    if (fill_columns(&columns)) return made;
    call_api.release(made);
    return nothing();
}

/* One column as module_frames.py packs it: floats, and a bit for each gap, the first in the highest bit of a byte;
 * what becomes of it, or -1 where a value does not fit into a float. */
static int pack_column(int64_t rows, const double *values, const uint8_t *gaps, int is_count, float *narrow,
                       uint8_t *marks) {
    int64_t missing = 0;
    int is_any = 0, fits = 1;
    for (int64_t i = 0; i < rows; i++) {
        narrow[i] = gaps[i] ? 0.0f : (float)values[i];
        is_any |= !gaps[i] && values[i] != 0.0;
        fits &= gaps[i] || (isfinite(narrow[i]) && (narrow[i] == 0.0f) == (values[i] == 0.0));
        if (gaps[i]) marks[i / 8] |= (uint8_t)(0x80 >> i % 8);
        missing += gaps[i];
    }
    if (missing == rows || (is_count && !is_any)) return LEFT_OUT;
    return !fits ? -1 : missing ? WITH_GAPS : WITHOUT_GAPS;
}

/* pack(columns): for each of them a byte that says what becomes of it, then all floats, then all marks, as a
 * bytearray; None where a value does not fit into a float. */
static Object *calls_pack(Object *self, Object *given) {
    (void)self;
    char *memory = call_api.bytes_of(given);
    const int64_t rows = *(int64_t *)memory, wide = 4 * rows, marks = (rows + 7) / 8, head = 16;
    const CallColumns columns = columns_in(memory, rows);
    Object *packed = call_api.new_bytes(NULL, (ptrdiff_t)(head + COLUMN_COUNT * (wide + marks)));
    if (packed == NULL) {
        settle_error();
        return nothing();
    }
    char *place = call_api.bytes_of(packed);
    memset(place, 0, (size_t)(head + COLUMN_COUNT * (wide + marks)));
    for (int64_t c = 0; c < COLUMN_COUNT; c++) {
        const int is_count = c == NANS_COLUMN || c == INFS_COLUMN;
        const int kind = pack_column(rows, columns.block + c * rows, columns.gaps + c * rows, is_count,
                                     (float *)(place + head + c * wide),
                                     (uint8_t *)place + head + COLUMN_COUNT * wide + c * marks);
        if (kind < 0) {
            call_api.release(packed);
            return nothing();
        }
        place[c] = (char)kind;
    }
    return packed;
}
