/* fit/backup.c -- the callback that saves a training, and continues it in another process.
 *
 * A `backup` is the state of the callback. While a training runs, it has a checkpoint with all
 * parts of the training (fit/resume.h) and a manager of the directory (save/manager.h). The
 * callback handles save points (fit/training.h): it loads the newest checkpoint at the first,
 * and saves at later ones when a save is due.
 *
 *   1. A save by steps or seconds is skipped while the last write is in progress. A forced save
 *      waits for that write. Forced saves are those of signals, pauses, the best epoch, the end
 *      and, unless the overhead is limited, of epochs.
 *   2. Errors of saves are warnings, because a training must not end for want of disk space.
 *      A lost parameter server ends the training; the error names the last checkpoint.
 *   3. With parameter servers, a save does not wait for the steps in flight. It captures the
 *      state and prepares a cut (`is_prepared`), the training goes on, and a later save point
 *      saves when the steps before the capture have ended. If a callback waits for all steps
 *      meanwhile, the cut is given up, and the save begins anew.
 *   4. In rounds of CH_SYNCHRONOUS, no save divides a round, because the steps after it would
 *      read other values. A save that is due in mid-round waits for the end of the round, even
 *      a forced one. ch_fit runs on until then, also after a pause.
 *   5. The best epoch (`monitor`) is the best of those whose checkpoint was committed. If the
 *      write of a better one fails, the state is saved again as long as no step changes it, and
 *      is forgotten then.
 *   6. After SIGTERM, waits for writes end with the time of grace (end_of_grace), and the write
 *      that is still in progress is abandoned. From the beginning of the training until the
 *      handlers are removed, SIGTERM makes ch_fit return CANCELLED, also when everything is
 *      saved.
 *   7. After a pause the first state that is saved is that of the next process: later save
 *      points show what the pause has cut short.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cohort/checkpoint_reader.h"
#include "file/folder.h"
#include "fit/callback.h"
#include "fit/interrupt.h"
#include "fit/resume.h"
#include "save/manager.h"
#include "strategy/cut.h"

enum { KEEP = 2, GRACE_SECONDS = 10, PATH_BYTES = 4096, NAME_BYTES = 256 };

/* A save point, to recognise a state that is saved already. */
typedef struct place {
    int      epoch;
    ch_phase phase;
    int64_t  step, validation_step;
} place;

typedef struct backup {
    ch_callback_ops   ops;
    char             *directory;
    ch_backup_options opt; /* opt.monitor is NULL: the name is in `monitor` */
    bool              has_monitor;
    ch_monitor        monitor;

    /* Of the running training: */
    ch_checkpoint         *checkpoint; /* NULL: no training is running */
    ch_checkpoint_manager *manager;
    ch_restored *restored;    /* values that wait for variables; NULL: nothing was loaded */
    int64_t      loaded_step; /* steps of the training when it was loaded; 0: it was not */
    place        saved;       /* save point of the last save; epoch -1: none */
    bool         is_prepared; /* a state was captured and waits for the end of its steps */
    place        prepared;    /* save point of that state */
    bool         was_missed;  /* a save that was due could not be made yet */
    char         last[PATH_BYTES]; /* path of the last save; "": none */
    char         best[NAME_BYTES]; /* name of the best epoch's checkpoint; "": none */
    double       best_value;       /* of the monitored log in that epoch */
    /* An epoch that is better, whose value is in `monitor`: the steps of the training at its
     * end (-1: there is none), and the checkpoint that is being written ("": none). */
    int64_t better_step;
    char    better[NAME_BYTES];
    bool    is_best;    /* the state that is being captured is of such an epoch */
    bool    has_paused; /* the state of the pause was saved */
    bool    catches;    /* the handlers of signals are installed */
    int     n_requests; /* signals SIGUSR1 that were handled */
    int64_t saved_ns;   /* time of the last save, or of the beginning */
} backup;

/* ---- places ---- */

static place place_of(const ch_training *t)
{
    return (place){.epoch = t->epoch,
                   .phase = t->phase,
                   .step = t->step,
                   .validation_step = t->phase == CH_PHASE_VALIDATING ? t->validation_step : 0};
}

static bool is_saved(const backup *b, const ch_training *t)
{
    place now = place_of(t);

    return b->saved.epoch == now.epoch && b->saved.phase == now.phase &&
           b->saved.step == now.step && b->saved.validation_step == now.validation_step;
}

/* ---- the parts of the training ---- */

static ch_status save_training(void *self, ch_tuple **out)
{
    return ch__training_save(self, out);
}

static ch_status load_training(void *self, ch_tuple *state)
{
    return ch__training_load(self, state);
}

static ch_status add_part(void *arg, const ch_training_part *p)
{
    ch_checkpoint *c = arg;

    if (p->model != NULL)
        return ch_checkpoint_add_model(c, p->name, p->model);
    if (p->optimizer != NULL)
        return ch_checkpoint_add_optimizer(c, p->name, p->optimizer);
    if (p->metric != NULL)
        return ch_checkpoint_add_metric(c, p->name, p->metric);
    return ch_checkpoint_add_iterator(c, p->name, p->iterator);
}

static ch_status add_parts(backup *b, ch_training *t)
{
    static const ch_state_ops ops = {save_training, load_training};
    ch_status                 rc = ch__training_visit(t, add_part, b->checkpoint);

    return rc == CH_OK ? ch_checkpoint_add_state(b->checkpoint, "training", &ops, t) : rc;
}

/* ---- begin and end ---- */

static void catch_signals(backup *b)
{
    b->catches = b->opt.signals;
    for (int i = CH_INTERRUPT_TERMINATE; b->catches && i <= CH_INTERRUPT_SAVE; i++)
        ch__interrupt_catch((ch_interrupt)i);
}

/* Returns true if SIGTERM came before its handler was removed. */
static bool release_signals(backup *b)
{
    bool is_terminated = false;

    for (int i = CH_INTERRUPT_TERMINATE; b->catches && i <= CH_INTERRUPT_SAVE; i++)
        is_terminated |=
            ch__interrupt_release((ch_interrupt)i) > 0 && i == CH_INTERRUPT_TERMINATE;
    b->catches = false;
    return is_terminated;
}

static bool is_terminated(const backup *b)
{
    return b->catches && ch__interrupts(CH_INTERRUPT_TERMINATE) > 0;
}

/* Returns the time of ch__now_ns until which the training may wait for a write. */
static int64_t end_of_grace(void *arg)
{
    const backup *b = arg;

    return is_terminated(b) ? ch__interrupt_ns(CH_INTERRUPT_TERMINATE) +
                                  (int64_t)(b->opt.grace_seconds * 1e9)
                            : INT64_MAX;
}

/* ---- the best epoch ---- */

/* Writes the name of a checkpoint, without its directory. */
static void copy_name(char name[NAME_BYTES], const char *path)
{
    const char *slash = strrchr(path, '/');

    snprintf(name, NAME_BYTES, "%s", slash != NULL ? slash + 1 : path);
}

/* Returns true if the epoch that has ended is the best so far, and records it. */
static bool is_best_epoch(backup *b, ch_training *t)
{
    double value;

    if (!b->has_monitor || !ch__monitor_read(&b->monitor, t, &value) ||
        !ch__monitor_is_better(&b->monitor, value, b->monitor.best))
        return false;
    b->monitor.best = value;
    b->better_step = t->step;
    return true;
}

/* Makes the better epoch the best, because its checkpoint is committed. */
static void set_best(backup *b)
{
    snprintf(b->best, sizeof(b->best), "%s", b->better);
    b->best_value = b->monitor.best;
    b->better[0] = '\0';
    b->better_step = -1;
}

/* Forgets a better epoch whose state was not saved and has changed. */
static void forget_better(backup *b, const ch_training *t)
{
    bool is_captured = b->is_prepared && b->prepared.step == b->better_step;

    if (b->better_step < 0 || b->better[0] != '\0' || b->better_step == t->step || is_captured)
        return;
    b->monitor.best = b->best_value;
    b->better_step = -1;
}

/* ---- loading ---- */

/* Loads the newest checkpoint, if there is any. load_training and backup_load are called. */
static ch_status restore(backup *b, const ch_training *t)
{
    const char *path = NULL;
    ch_status   rc = ch_checkpoint_manager_restore(b->manager, &b->restored, &path);

    if (rc != CH_OK || path == NULL)
        return rc;
    if (ch_restored_assert_existing(b->restored) != CH_OK)
        ch__log(CH_LOG_WARNING, "backup", "the training goes on with new variables: %s",
                ch_error_message());
    if (b->is_best)
        copy_name(b->best, path);
    b->is_best = false;
    b->best_value = b->monitor.best;
    snprintf(b->last, sizeof(b->last), "%s", path);
    b->saved = place_of(t);
    b->loaded_step = t->step;
    if (b->best[0] != '\0')
        rc = ch__manager_keep(b->manager, b->best);
    ch__log(CH_LOG_INFO, "backup", "the training goes on from %s: epoch %d, step %lld", path,
            t->epoch + 1, (long long)t->epoch_step);
    return rc;
}

static ch_status begin(backup *b, ch_training *t)
{
    ch_manager_options opt = {.max_to_keep = b->opt.max_to_keep,
                              .overhead = b->opt.overhead,
                              .write = {.staging_bytes = b->opt.staging_bytes}};
    ch_status          rc = ch_checkpoint_new(&b->checkpoint);

    catch_signals(b);
    b->saved = (place){.epoch = -1};
    b->last[0] = b->best[0] = b->better[0] = '\0';
    b->better_step = -1;
    b->is_best = b->has_paused = b->is_prepared = b->was_missed = false;
    b->n_requests = 0;
    b->loaded_step = 0;
    b->saved_ns = ch__now_ns();
    if (b->has_monitor)
        ch__monitor_reset(&b->monitor);
    b->best_value = b->monitor.best;
    if (rc == CH_OK)
        rc = add_parts(b, t);
    if (rc == CH_OK)
        rc = ch_checkpoint_manager_new(b->checkpoint, b->directory, &opt, &b->manager);
    if (rc == CH_OK) {
        ch__manager_limit_waits(b->manager, end_of_grace, b);
        rc = restore(b, t);
    }
    return rc;
}

/* ---- saving ---- */

static void warn(const backup *b)
{
    ch__log(CH_LOG_WARNING, "backup", "%s: the training was not saved: %s", b->directory,
            ch_error_message());
}

/* Waits for the last write until `until`, a time of ch__now_ns, and warns of its error. Returns
 * false if the write is still in progress. */
static bool finish_write(backup *b, int64_t until)
{
    bool      is_ended = false;
    ch_status rc = ch__manager_wait(b->manager, until, &is_ended);

    if (rc != CH_OK && (is_ended || !is_terminated(b))) {
        warn(b);
        b->saved.epoch = -1;
    }
    if (is_ended && b->better[0] != '\0') {
        if (rc == CH_OK)
            set_best(b);
        b->better[0] = '\0';
    }
    return is_ended;
}

/* Saves the training, or the captured state. The last write must have ended. Returns an error
 * only if the training cannot go on. */
static ch_status save(backup *b, const ch_training *t)
{
    const char *path = NULL;
    place       now = b->is_prepared ? b->prepared : place_of(t);
    ch_status   rc;

    forget_better(b, t);
    b->is_best = now.step == b->better_step;
    if (b->is_best)
        ch__manager_keep_next(b->manager);
    rc = b->is_prepared ? ch__manager_save_prepared(b->manager, &path)
                        : ch_checkpoint_manager_save(b->manager, true, &path);
    b->saved_ns = ch__now_ns();
    if (rc == CH_UNAVAILABLE)
        return rc; /* a parameter server is lost */
    if (rc != CH_OK) {
        warn(b);
    } else if (path != NULL) {
        b->saved = now;
        snprintf(b->last, sizeof(b->last), "%s", path);
        if (b->is_best)
            copy_name(b->better, path);
    }
    b->is_best = false;
    return CH_OK;
}

/* Drops a captured state that was not saved. */
static void drop_prepared(backup *b, ch_training *t)
{
    if (!b->is_prepared)
        return;
    b->is_prepared = false;
    ch__cut_give_up_prepared(ch_model_strategy(t->model));
    ch__training_release(t);
}

/* Captures the state, while steps are in flight. */
static void prepare(backup *b, ch_training *t)
{
    ch_status rc;

    /* The captured state names the best epoch, so its write must have ended. */
    if (b->better[0] != '\0')
        (void)finish_write(b, INT64_MAX);
    forget_better(b, t);
    b->is_best = b->better_step == t->step;
    rc = ch__training_capture(t);
    b->is_best = false;
    if (rc != CH_OK) {
        warn(b);
        return;
    }
    b->is_prepared = true;
    b->prepared = place_of(t);
    b->was_missed = !ch__cut_prepare(ch_model_strategy(t->model));
    if (b->was_missed) /* another thread takes a cut */
        drop_prepared(b, t);
}

/* Saves the captured state if its steps have ended. Drops it if the cut was given up: then the
 * save is made anew. */
static ch_status finish_prepared(backup *b, ch_training *t)
{
    bool      is_ready, is_given_up;
    ch_status rc = CH_OK;

    is_given_up = !ch__cut_is_prepared(ch_model_strategy(t->model), &is_ready);
    b->was_missed |= is_given_up;
    if (is_ready && finish_write(b, INT64_MAX))
        rc = save(b, t);
    if (is_ready || is_given_up)
        drop_prepared(b, t);
    return rc;
}

/* Returns true if epochs are saved, and this save point is of such an epoch. */
static bool is_epoch(const backup *b, const ch_training *t, int event)
{
    return event == CH_SAVE_POINT_EPOCH && b->opt.every_epochs > 0 &&
           (t->epoch + 1) % b->opt.every_epochs == 0;
}

/* Returns true if the intervals of the options allow a save at this save point. */
static bool is_time(const backup *b, const ch_training *t, int event)
{
    const ch_backup_options *o = &b->opt;
    bool has_interval = o->every_steps > 0 || o->every_epochs > 0 || o->every_seconds > 0;

    if (is_epoch(b, t, event) || !has_interval)
        return true;
    if (event == CH_SAVE_POINT_STEP && o->every_steps > 0 && t->phase == CH_PHASE_STEPS &&
        t->epoch_step > 0 && t->step % o->every_steps == 0)
        return true;
    return o->every_seconds > 0 &&
           (double)(ch__now_ns() - b->saved_ns) * 1e-9 >= o->every_seconds;
}

/* Returns true if the training must be saved, whatever the intervals. */
static bool is_forced(backup *b, ch_training *t, int event)
{
    int  n = b->catches ? ch__interrupts(CH_INTERRUPT_SAVE) : 0;
    bool forced = event == CH_SAVE_POINT_END || t->pauses || n > b->n_requests ||
                  (b->opt.overhead == 0 && is_epoch(b, t, event));

    b->n_requests = n;
    return (event == CH_SAVE_POINT_EPOCH && is_best_epoch(b, t)) || forced;
}

/* Returns true if a save would divide a round of CH_SYNCHRONOUS, and further steps end the
 * round. At the end of its steps, an epoch has ended the round. */
static bool is_in_mid_round(const ch_training *t, int event)
{
    return event == CH_SAVE_POINT_STEP && t->phase == CH_PHASE_STEPS &&
           ch__cut_divides_round(ch_model_strategy(t->model));
}

/* Returns the error of a training that SIGTERM has ended and that was saved. */
static ch_status fail_saved(const backup *b, const ch_training *t)
{
    return ch__fail(CH_CANCELLED,
                    "terminated in epoch %d, step %lld; saved as %s; start it again to go on",
                    t->epoch + 1, (long long)t->epoch_step, b->last);
}

/* Returns the error of a training that SIGTERM has ended and that was not saved. */
static ch_status fail_unsaved(const backup *b, const ch_training *t, const char *why)
{
    char last[PATH_BYTES];
    bool is_any = ch_checkpoint_find_latest(b->directory, last, sizeof(last)) == CH_OK;

    return ch__fail(CH_CANCELLED, "terminated in epoch %d, step %lld; %s; %s%s", t->epoch + 1,
                    (long long)t->epoch_step, why,
                    is_any ? "start it again to go on from "
                           : "there is no checkpoint, so it begins anew if it is started again",
                    is_any ? last : "");
}

/* Gives up the write in progress. It uses the manager and the checkpoint, so these must not be
 * freed. */
static void abandon(backup *b)
{
    ch__manager_abandon(b->manager);
    b->saved.epoch = -1;
    b->manager = NULL;
    b->checkpoint = NULL;
    b->restored = NULL;
}

/* Ends the training after SIGTERM: saves within the time of grace. If the round of
 * CH_SYNCHRONOUS does not end within that time, the state is not saved. */
static ch_status terminate(backup *b, ch_training *t, bool is_divided)
{
    int64_t   until = end_of_grace(b);
    bool      is_ended;
    char      why[160];
    ch_status rc;

    if (is_divided && ch__now_ns() < until)
        return CH_OK; /* the training runs on to the end of the round */
    drop_prepared(b, t);
    rc = ch__training_drain(t);
    if (rc != CH_OK)
        return rc;
    is_ended = finish_write(b, until);
    if (is_ended && !is_divided && !is_saved(b, t)) {
        rc = save(b, t);
        if (rc != CH_OK)
            return rc;
        is_ended = finish_write(b, until);
    }
    if (!is_ended)
        abandon(b);
    if (is_ended && is_saved(b, t))
        return fail_saved(b, t);
    snprintf(why, sizeof(why), "%s did not end within %g seconds%s",
             is_ended ? "the round of the coordinator" : "the save", b->opt.grace_seconds,
             is_ended ? ", so it was not saved" : " and was abandoned");
    return fail_unsaved(b, t,
                        is_ended && !is_divided ? "the save has failed, see the log" : why);
}

/* Waits for the steps in flight, and for the last write, and saves. */
static ch_status save_drained(backup *b, ch_training *t)
{
    ch_status rc = ch__training_drain(t);

    if (rc != CH_OK)
        return rc;
    return !finish_write(b, INT64_MAX) || is_saved(b, t) ? CH_OK : save(b, t);
}

static ch_status save_if_due(backup *b, ch_training *t, int event, bool forced)
{
    bool      due, ends, waits = is_in_mid_round(t, event);
    ch_status rc = CH_OK;

    /* Before the first step of this process there is nothing to lose. */
    due = ch__manager_is_due(b->manager,
                             t->step > b->loaded_step && is_time(b, t, event) &&
                                 !is_saved(b, t) && !b->is_prepared,
                             forced);
    ends = event == CH_SAVE_POINT_END || (t->pauses && !waits);
    if (ends)
        drop_prepared(b, t);
    if (b->is_prepared) {
        rc = finish_prepared(b, t);
        b->was_missed |= forced;
        if (rc != CH_OK || b->is_prepared)
            return rc;
    }
    if (!due && !b->was_missed)
        return CH_OK;
    b->was_missed = waits;
    if (waits)
        return CH_OK;
    b->has_paused = t->pauses;
    if (!ends && ch__training_is_in_flight(t))
        prepare(b, t);
    else
        rc = save_drained(b, t);
    if (event == CH_SAVE_POINT_END)
        (void)finish_write(b, INT64_MAX);
    return rc;
}

static ch_status save_point(backup *b, ch_training *t, int event)
{
    bool      forced;
    ch_status rc = CH_OK;

    if (b->has_paused)
        return CH_OK;
    /* An epoch is compared with the best one that was committed. */
    (void)finish_write(b, event == CH_SAVE_POINT_EPOCH && b->better[0] != '\0' ? INT64_MAX : 0);
    forget_better(b, t);
    forced = is_forced(b, t, event);
    if (!is_terminated(b))
        rc = save_if_due(b, t, event, forced);
    /* The signal may have come during a wait, also in the last save. */
    return rc == CH_OK && is_terminated(b) ? terminate(b, t, is_in_mid_round(t, event)) : rc;
}

/* Waits for the write in progress, within the time of grace after SIGTERM, and releases
 * everything. Returns true if SIGTERM has come. */
static bool end(backup *b)
{
    if (b->manager != NULL && !finish_write(b, INT64_MAX) && is_terminated(b))
        abandon(b);
    ch_restored_unref(b->restored);
    ch_checkpoint_manager_unref(b->manager);
    ch_checkpoint_unref(b->checkpoint);
    b->restored = NULL;
    b->manager = NULL;
    b->checkpoint = NULL;
    return release_signals(b);
}

static ch_status backup_on(void *self, ch_training *t, ch_event event)
{
    backup *b = self;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if ((int)event == CH_SAVE_POINT_BEGIN)
        return begin(b, t);
    if (event != CH_ON_END)
        return save_point(b, t, (int)event);
    /* The slots of an optimizer exist after its first step. */
    if (b->restored != NULL && t->step == b->loaded_step)
        ch_restored_expect_partial(b->restored);
    if (b->manager != NULL)
        ch__manager_count_saves(b->manager, &t->n_saves, &t->n_skipped_saves);
    drop_prepared(b, t); /* the training has failed */
    if (!end(b))
        return CH_OK;
    /* An error that ch_fit has already goes first. */
    return b->saved.epoch >= 0 ? fail_saved(b, t)
                               : fail_unsaved(b, t, "the last state was not saved");
}

/* ---- the callback's own state ---- */

static ch_status backup_save(void *self, ch_tuple **out)
{
    const backup *b = self;
    ch_state      s = {0};

    if (b->has_monitor)
        ch__monitor_save(&b->monitor, &s);
    ch__state_put_int(&s, "is_best", b->is_best);
    ch__state_put_text(&s, "best_name", b->best);
    return ch__state_end(&s, out);
}

static ch_status backup_load(void *self, ch_tuple *state)
{
    backup   *b = self;
    int       is_best = 0;
    ch_status rc = ch__state_get_int_in(state, "is_best", 0, 1, &is_best);

    if (rc == CH_OK && b->has_monitor && ch__state_get(state, "monitor") != NULL)
        rc = ch__monitor_load(&b->monitor, state);
    if (rc == CH_OK)
        rc = ch__state_get_text(state, "best_name", b->best, sizeof(b->best));
    if (rc == CH_OK && b->best[0] != '\0') /* before the manager removes old checkpoints */
        rc = ch__manager_keep(b->manager, b->best);
    b->is_best = is_best != 0;
    return rc;
}

/* ---- creation ---- */

static void backup_drop(void *self)
{
    backup *b = self;

    (void)end(b);
    ch__monitor_drop(&b->monitor);
    ch__free(b->directory);
    ch__free(b);
}

static ch_status check(const char *directory, const ch_backup_options *o)
{
    if (directory == NULL || directory[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "backup: directory is NULL or empty");
    if (o->every_steps < 0 || o->every_epochs < 0 || !(o->every_seconds >= 0))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "backup: every %lld steps, %d epochs, %g seconds: want 0 or more",
                        (long long)o->every_steps, o->every_epochs, o->every_seconds);
    if (!(o->overhead >= 0 && o->overhead < 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "backup: the overhead is %g, want at least 0 and less than 1",
                        o->overhead);
    if (o->max_to_keep < 0 || !(o->grace_seconds >= 0) || isinf(o->grace_seconds))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "backup: max_to_keep is %d and grace_seconds %g, want 0 or more",
                        o->max_to_keep, o->grace_seconds);
    if (o->staging_bytes < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "backup: staging_bytes is %lld, want 0 (the size of the state) or more",
                        (long long)o->staging_bytes);
    return CH_OK;
}

static ch_backup_options with_defaults(const ch_backup_options *opt)
{
    ch_backup_options o = *opt;

    if (o.every_steps == 0 && o.every_epochs == 0 && o.every_seconds == 0 && o.overhead == 0)
        o.every_epochs = 1;
    o.max_to_keep = o.max_to_keep > 0 ? o.max_to_keep : KEEP;
    o.grace_seconds = o.grace_seconds > 0 ? o.grace_seconds : GRACE_SECONDS;
    o.monitor = NULL;
    return o;
}

ch_status ch_callback_backup(const char *directory, const ch_backup_options *opt,
                             ch_callback **out)
{
    static const ch_backup_options none;
    backup                        *b;
    ch_status                      rc;

    opt = opt != NULL ? opt : &none;
    rc = ch__check_not_null("backup", "out", out, NULL, NULL);
    if (rc == CH_OK)
        rc = check(directory, opt);
    if (rc != CH_OK)
        return rc;
    b = ch__calloc(1, sizeof(*b));
    if (b == NULL)
        return ch__fail_memory("backup");
    *b = (backup){.ops = {.name = "backup",
                          .events = CH_SAVE_POINT_BEGIN | CH_SAVE_POINT_STEP |
                                    CH_SAVE_POINT_EPOCH | CH_SAVE_POINT_END | CH_ON_END,
                          .on = backup_on,
                          .drop = backup_drop,
                          .save = backup_save,
                          .load = backup_load},
                  .directory = ch__strdup(directory),
                  .opt = with_defaults(opt),
                  .has_monitor = opt->monitor != NULL};
    if (b->directory == NULL)
        rc = ch__fail_memory("backup");
    if (rc == CH_OK && b->has_monitor)
        rc = ch__monitor_init(&b->monitor, "backup", opt->monitor, opt->goal, 0);
    if (rc == CH_OK)
        rc = ch__folder_make(directory);
    if (rc != CH_OK) {
        backup_drop(b);
        return rc;
    }
    return ch__callback_make(&b->ops, b, out);
}
