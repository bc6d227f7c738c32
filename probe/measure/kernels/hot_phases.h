/* What the phases of a followed step take: a part of hot.h. The sums lie in memory of `phase_times.py`, which goes on
 * with them where a step is given back to the slow way, in the middle of a phase too. */

/* Mirrors `phase_times.py`; sums in ns, or ABSENT. */
enum { PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASES, OPEN_PHASE = PHASES, BEGAN_NS, SUM_BEFORE,
       SEEN_WAITED_NS, SEEN_BATCHES };
enum { WAITED_NS, BATCHES };
enum { ABSENT = -1 };

static void add_to_phase(int phase, int64_t ns) {
    int64_t *sum = &hot_loop.phases[phase];
    *sum = (*sum == ABSENT ? 0 : *sum) + ns;
}

/* Take what this thread has waited for batches since the last time: for the step, or as a part of a phase. */
static void take_waits(int is_in_phase) {
    int64_t *phases = hot_loop.phases;
    const int64_t *waits = hot_loop.waits;
    if (phases == NULL || waits == NULL || waits[BATCHES] == phases[SEEN_BATCHES]) return;
    if (!is_in_phase) add_to_phase(PHASE_DATA, waits[WAITED_NS] - phases[SEEN_WAITED_NS]);
    phases[SEEN_WAITED_NS] = waits[WAITED_NS];
    phases[SEEN_BATCHES] = waits[BATCHES];
}

static void begin_phase(int phase, int64_t now) {
    if (hot_loop.phases == NULL) return;
    take_waits(0);
    hot_loop.phases[OPEN_PHASE] = phase;
    hot_loop.phases[BEGAN_NS] = now;
    hot_loop.phases[SUM_BEFORE] = hot_loop.phases[phase];
}

/* What of the phase is the probe's is in `step_own_ns`. */
static void end_phase(int phase, int64_t now, int64_t own_ns) {
    if (hot_loop.phases == NULL || hot_loop.phases[OPEN_PHASE] != phase) return;
    hot_loop.phases[OPEN_PHASE] = 0;
    take_waits(1);
    const int64_t taken = now - hot_loop.phases[BEGAN_NS] - own_ns;
    add_to_phase(phase, taken > 0 ? taken : 0);
}

/* Write the sums of a step that has ended, in seconds, and begin the next one. */
static void put_phases(uint8_t **place) {
    take_waits(0);
    for (int phase = 0; phase < PHASES; phase++) {
        const int64_t ns = hot_loop.phases ? hot_loop.phases[phase] : ABSENT;
        put_double(place, ns == ABSENT ? NAN : (double)ns / 1e9);
        if (hot_loop.phases) hot_loop.phases[phase] = ABSENT;
    }
}
