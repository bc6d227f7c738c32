/* Looks whether steps in the ring keep within what was judged before. The format is described in ring_format.py.
 *
 * Called on the recorder's thread, without Python's lock: the training thread may append meanwhile, behind what is
 * read here. Nothing of the detectors is here but their limits, which `detectors/calm.py` gathers. */

/* Mirrored by calm_binding.py. All logarithms are natural ones. */
typedef struct {
    int64_t template_id;
    int64_t parameters;
    int64_t rows;              /* layers */
    int64_t first_rate;        /* among the scalars of a record */
    int64_t rate_count;
    double loss_low, loss_high;
    double rate_low;           /* of the highest rate of a step */
    double expected;           /* log of the norm that the layers' medians have together */
    double common_low, common_high;
    double middle[2], scale[2]; /* of the loss, and of the log of the whole gradient's norm */
    const int64_t *starts;     /* (rows + 1,) first parameter of each layer */
    const double *low, *high;  /* (rows,) limits of the log of a layer's norm */
    const double *median, *mad; /* (rows,) what its height is counted from, and in */
    const double *gate;        /* (2 + rows,) of the sum of five heights: loss, whole gradient, layers */
    double *heights;           /* (KEPT_HEIGHTS, 2 + rows) of the newest steps, each in the row of its number */
    int64_t seen;              /* steps */
} Calm;

/* As detectors/jumps.py has them. */
enum { LASTING = 5, BEFORE = 16, KEPT_HEIGHTS = BEFORE + LASTING };
#define HEIGHT_CAP 8.0
#define STAYING 2.0
/* Of the five, that those before may have reached already: a slow rise is no jump. There it is half of them. */
#define RISEN_BEFORE 0.6

EXPORT int64_t nanscope_calm_size(void) { return sizeof(Calm); }

/* The height of a series so many steps ago. */
static double height_before(const Calm *calm, int64_t series, int64_t ago) {
    return calm->heights[(calm->seen + KEPT_HEIGHTS - ago) % KEPT_HEIGHTS * (2 + calm->rows) + series];
}

/* The median of the known ones of some heights, from `first` steps ago on; NaN where half of them are unknown. */
static double median_before(const Calm *calm, int64_t series, int64_t first, int64_t count) {
    double known[BEFORE];
    int64_t found = 0;
    for (int64_t ago = first; ago < first + count; ago++) {
        double one = height_before(calm, series, ago);
        if (one != one) continue;
        int64_t at = found++;
        for (; at > 0 && known[at - 1] > one; at--) known[at] = known[at - 1];
        known[at] = one;
    }
    return 2 * found < count ? NAN : (known[(found - 1) / 2] + known[found / 2]) / 2;
}

/* Whether a series has gone up and stayed so high for five steps that a closer look is due. */
static int has_risen(Calm *calm, int64_t series, double height) {
    double sum = 0.0;
    int64_t high = 0;
    calm->heights[calm->seen % KEPT_HEIGHTS * (2 + calm->rows) + series] = height;
    for (int64_t ago = 0; ago < LASTING; ago++) {
        const double one = height_before(calm, series, ago);
        /* NaN stays: of such a series nothing is known. */
        sum += one > HEIGHT_CAP ? HEIGHT_CAP : one < 0.0 ? 0.0 : one;
        high += one > STAYING;
    }
    if (!(sum > calm->gate[series]) || high < LASTING - 1) return 0;
    const double level = median_before(calm, series, 0, LASTING);
    return !(median_before(calm, series, LASTING, BEFORE) > RISEN_BEFORE * level);
}

static double number_at(const uint8_t *payload, int64_t at) {
    double value;
    memcpy(&value, payload + 8 * at, 8);
    return value;
}

/* NaN is never within. */
static int is_within(double value, double low, double high) { return value >= low && value <= high; }

static int is_calm_layer(Calm *calm, int64_t row, const float *norms, double *squares) {
    double sum = 0.0;
    for (int64_t i = calm->starts[row]; i < calm->starts[row + 1]; i++) sum += (double)norms[i] * norms[i];
    const double height = 0.5 * log(sum);
    *squares += sum;
    const int has_jumped = has_risen(calm, 2 + row, (height - calm->median[row]) / calm->mad[row]);
    return !has_jumped && is_within(height, calm->low[row], calm->high[row]);
}

static int has_calm_rates(const Calm *calm, const uint8_t *payload) {
    double highest = -INFINITY;
    for (int64_t i = 0; i < calm->rate_count; i++) {
        const double rate = fabs(number_at(payload, RAW_HEAD / 8 + calm->first_rate + i));
        if (rate > highest) highest = rate;
    }
    return calm->rate_count == 0 || highest >= calm->rate_low;
}

static int is_calm_step(Calm *calm, const uint8_t *payload) {
    int64_t head[RAW_HEAD / 8];
    memcpy(head, payload, RAW_HEAD);
    const int64_t count = head[3], flags = head[8], scalars = head[9];
    if (head[2] != calm->template_id || count != calm->parameters) return 0;
    if ((flags & (HAS_LOSS | HAS_NORM | HAS_MISSING)) != (HAS_LOSS | HAS_NORM)) return 0;
    const double loss = number_at(payload, 4), total = number_at(payload, 6);
    if (!is_within(loss, calm->loss_low, calm->loss_high) || !has_calm_rates(calm, payload)) return 0;
    const float *norms = (const float *)(payload + RAW_HEAD + 8 * scalars);
    int is_calm = !has_risen(calm, 0, (loss - calm->middle[0]) / calm->scale[0]);
    is_calm &= !has_risen(calm, 1, (log(total) - calm->middle[1]) / calm->scale[1]);
    double squares = 0.0;
    for (int64_t row = 0; row < calm->rows && is_calm; row++) is_calm = is_calm_layer(calm, row, norms, &squares);
    if (flags & HAS_PARAMETER_NORMS)
        for (int64_t i = 0; i < count && is_calm; i++) is_calm = isfinite(norms[4 * count + i]);
    calm->seen++;
    return is_calm && is_within(0.5 * log(squares) - calm->expected, calm->common_low, calm->common_high);
}

/* How many steps lie in `[from, until)`, total bytes; -1 where not all of them are calm. */
EXPORT int64_t nanscope_calm_steps(Calm *calm, const uint8_t *ring, int64_t from, int64_t until) {
    const int64_t capacity = ((const int64_t *)ring)[CAPACITY], before = calm->seen;
    while (from < until) {
        const int64_t at = from % capacity, left = capacity - at;
        if (left < RECORD_HEADER) {
            from += left;
            continue;
        }
        const uint8_t *record = ring + RING_HEADER + at;
        uint32_t payload, kind;
        memcpy(&payload, record + 8, 4);
        memcpy(&kind, record + 12, 4);
        const int64_t bytes = RECORD_HEADER + ((int64_t)payload + 7) / 8 * 8;
        if (bytes > left || from + bytes > until) return -1;
        if (kind == KIND_RAW && !is_calm_step(calm, record + RECORD_HEADER)) return -1;
        if (kind == KIND_FRAME) return -1;
        from += bytes;
    }
    return calm->seen - before;
}
