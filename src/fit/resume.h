/* fit/resume.h -- the state of a training: saved at a save point, loaded in another process.
 *
 * The state has parts that a checkpoint saves by rules of its own (models, optimizers, metrics,
 * iterators), and a tuple with everything else: the position in the epochs, the history, and
 * the states of the callbacks. A training that is loaded ends with the bits of a training that
 * ran in one process.
 *
 * All functions must be called at a save point of ch_fit (fit/training.h), and load at
 * CH_SAVE_POINT_BEGIN.
 *
 * With parameter servers, steps may be in flight at a save point. Then the caller drains before
 * it saves, or it saves in two parts, so that workers have steps all the time:
 *
 *     rc = ch__training_capture(t); // the state after the steps that were started so far
 *     ch__cut_prepare(strategy);    // a cut with exactly these steps (strategy/cut.h)
 *     ... at a later save point, when the cut is ready: save; ch__training_release(t)
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_RESUME_H
#define FIT_RESUME_H

#include "cohort/iterator.h"
#include "cohort/metric.h"
#include "fit/training.h"

/* A part of a training. Exactly one of the pointers is not NULL; all are borrowed. */
typedef struct ch_training_part {
    const char   *name;  /* the same in every process, and no other part has it */
    ch_model     *model; /* its variables, and the number of its steps (ch__model_steps) */
    ch_optimizer *optimizer;
    ch_metric    *metric;
    ch_iterator  *iterator;
} ch_training_part;

/* Calls `fn` with each part. An error of `fn` ends the visit and is returned. */
typedef ch_status (*ch_training_part_fn)(void *arg, const ch_training_part *part);
ch_status ch__training_visit(ch_training *t, ch_training_part_fn fn, void *arg);

/* Returns true if steps may be in flight. */
bool ch__training_is_in_flight(const ch_training *t);
/* Captures the state. Until ch__training_release, ch__training_save and the position of the
 * data give the captured state. Two parts are not captured:
 *   - sums over the outputs of steps: they grow until all steps that were started have ended;
 *   - the position of the validation, which does not run meanwhile. */
ch_status ch__training_capture(ch_training *t);
/* Drops a captured state. Does nothing if there is none. */
void ch__training_release(ch_training *t);

/* Saves all that is not in a part as a tuple, which the caller unrefs. */
ch_status ch__training_save(ch_training *t, ch_tuple **out);
/* Loads such a tuple, after all parts are loaded. After an error the training must end.
 * FAILED_PRECONDITION: a callback has another name than the callback at its position had. */
ch_status ch__training_load(ch_training *t, ch_tuple *state);

#endif
