/* fit/report/progress.c -- the progress callback: when the line is drawn, and its values.
 *
 * A `progress` is the state of the callback. It receives all events of a loop, decides whether
 * something is due to be shown, fills a ch_progress_record, and renders it with
 * progress_text.c. Events of ch_evaluate and ch_predict are handled as if their pass were an
 * epoch. Invariants:
 *
 *   1. Logs are read without a drain (peeks, see fit/inflight.h), so that the line does not
 *      make workers idle.
 *   2. Only one `progress` has the live line of the process (has_live). Others print whole
 *      lines above it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/report/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "base/thread.h"
#include "fit/callback.h"
#include "fit/report/progress_text.h"

#define MS ((int64_t)1000000)

static const int64_t draw_every = 50 * MS; /* between drawings of the live line */
/* Between lines: always, and at a tenth of an epoch. */
static const int64_t lines_every = 30000 * MS, tenths_every = 5000 * MS;
static const int64_t objects_every = 1000 * MS; /* between JSON objects for steps */

enum { TEXT_BYTES = 4000 };

typedef struct {
    ch_progress how; /* BAR, LINES or JSON; AUTO is resolved */
    int         fd;
    ch_terminal terminal;
    bool        is_utf8;
    bool        has_live; /* this callback has the live line */
    bool        is_open;  /* an epoch has begun and not ended */
    /* Times when the training began, when the epoch began, and of the last display. */
    int64_t began_ns, epoch_ns, shown_ns;
    int64_t trained_ns; /* time when the validation began; 0: it has not */
    /* State after the first step, which is slow because it plans. */
    int64_t first_ns, first_step, first_examples;
    int64_t tenth;    /* tenth of the epoch that was shown last */
    int     frame;    /* number of times the line was drawn in this epoch */
    ch_logs seen;     /* logs that were shown last */
    ch_logs expected; /* names of the logs of training steps so far; values unused */
} progress;

static int64_t (*clock_ns)(void) = ch__now_ns;

void ch__progress_clock(int64_t (*now_ns)(void))
{
    clock_ns = now_ns != NULL ? now_ns : ch__now_ns;
}

/* ---- contents ---- */

/* Return the steps done, the planned steps (-1: not known) and the examples so far of the
 * epoch. In ch_evaluate and ch_predict they are those of the pass. */
static int64_t steps_done(const ch_training *t)
{
    return t->is_evaluation ? t->validation_step : t->epoch_step;
}

static int64_t steps_to_do(const ch_training *t)
{
    int64_t n = t->is_evaluation ? t->validation_steps : t->epoch_steps;

    return n > 0 ? n : -1;
}

static int64_t rows_seen(const ch_training *t)
{
    return t->is_evaluation ? t->examples : t->epoch_examples;
}

/* Writes the title of an epoch or a pass. An evaluation is recognised by its logs: it has some
 * after its first step, and a prediction has none. */
static void put_title(const ch_training *t, char text[64])
{
    if (t->is_evaluation)
        snprintf(text, 64, "%s", t->is_stale || t->logs.n > 0 ? "Evaluate" : "Predict");
    else
        snprintf(text, 64, t->epochs > 0 ? "%s %d/%d" : "%s %d",
                 t->epoch_name != NULL ? t->epoch_name : "Epoch", t->epoch + 1, t->epochs);
}

/* Returns the record to show. The speed excludes the first step, because it is slower than the
 * others, and validation. */
static ch_progress_record record_of(const progress *p, const ch_training *t, int64_t now,
                                    bool is_done)
{
    int64_t            until = p->trained_ns != 0 ? p->trained_ns : now;
    ch_progress_record r = {.event = !is_done           ? "step"
                                     : t->is_evaluation ? "evaluation"
                                                        : "epoch",
                            .epoch = t->epoch,
                            .epochs = t->epochs,
                            .step = steps_done(t),
                            .steps = steps_to_do(t),
                            .seconds = (double)(now - p->began_ns) * 1e-9,
                            .epoch_seconds = (double)(now - p->epoch_ns) * 1e-9,
                            .is_done = is_done,
                            .is_validating = p->trained_ns != 0 && !is_done,
                            .validation_step = t->validation_step,
                            .validation_steps = t->validation_steps,
                            .why = t->stops ? t->why : NULL,
                            .logs = &p->seen};
    bool               has_more = p->first_step > 0 && r.step > p->first_step;
    double             passed = (double)(until - (has_more ? p->first_ns : p->epoch_ns)) * 1e-9;
    int64_t            steps = r.step - (has_more ? p->first_step : 0);
    int64_t            examples = rows_seen(t) - (has_more ? p->first_examples : 0);

    put_title(t, r.title);
    if (steps > 0 && passed > 0) {
        r.per_step = passed / (double)steps;
        r.per_second = (double)examples / passed;
    }
    return r;
}

/* Copies the logs of the training to p->seen. Logs of a validation are those of an earlier
 * epoch until the epoch has ended, so they are skipped before. If memory is exhausted, a log is
 * not shown. */
static void copy_logs(progress *p, ch_training *t, bool is_done)
{
    const ch_logs *logs = ch__training_logs(t);

    ch__logs_drop(&p->seen);
    for (int i = 0; i < logs->n; i++) {
        const char *name = logs->at[i].name;

        if (is_done || !ch__is_of_validation(name))
            (void)ch__logs_set(&p->seen, name, logs->at[i].value);
        if (!ch__is_of_validation(name))
            (void)ch__logs_set(&p->expected, name, 0);
    }
}

/* ---- live line ---- */

static void draw(progress *p, const ch_progress_record *r)
{
    char              text[TEXT_BYTES];
    ch_text           o = ch__text(text, sizeof(text));
    ch_progress_style style = {.columns = ch__terminal_columns(p->fd),
                               .has_color = p->terminal.has_color,
                               .is_utf8 = p->is_utf8,
                               .frame = p->frame++,
                               .expected = &p->expected};
    int               width = ch__progress_live(&o, r, &style);

    if (r->is_done)
        ch__live_end(text);
    else
        ch__live_draw(text, width, style.columns);
    p->has_live = !r->is_done;
}

static void draw_title(const progress *p, const ch_training *t)
{
    char    text[64], line[96];
    ch_text o = ch__text(line, sizeof(line));

    put_title(t, text);
    ch__text_add(&o, p->terminal.has_color ? "\033[1m%s\033[0m\n" : "%s\n", text);
    ch__print_above(p->fd, line, (size_t)ch__text_length(&o));
}

/* ---- lines and JSON objects ---- */

static void print_line(const progress *p, const ch_progress_record *r)
{
    char    text[TEXT_BYTES];
    ch_text o = ch__text(text, sizeof(text));

    ch__progress_plain(&o, r);
    ch__print_above(p->fd, text, o.used < sizeof(text) ? o.used : sizeof(text) - 1);
}

static void print_object(const progress *p, const ch_progress_record *r)
{
    char    text[TEXT_BYTES];
    ch_text o = ch__text(text, sizeof(text));

    ch__progress_object(&o, r);
    if (o.used < sizeof(text)) /* a partial object could not be parsed */
        ch__print_above(p->fd, text, o.used);
}

/* Prints the object of the beginning or the end of a training. */
static void print_event(const progress *p, const ch_training *t, int64_t now, const char *event)
{
    ch_progress_record r = record_of(p, t, now, false);

    r.event = event;
    print_object(p, &r);
}

static void show(progress *p, ch_training *t, int64_t now, bool is_done)
{
    ch_progress_record r;

    if (p->trained_ns == 0 || is_done)
        copy_logs(p, t, is_done);
    p->shown_ns = now;
    r = record_of(p, t, now, is_done);
    if (p->how == CH_PROGRESS_JSON)
        print_object(p, &r);
    else if (p->has_live)
        draw(p, &r);
    else
        print_line(p, &r);
}

/* ---- events ---- */

/* Begins an epoch. If another callback has the live line, this one prints whole lines above
 * it. */
static void open_epoch(progress *p, const ch_training *t, int64_t now)
{
    ch_progress_record r;

    if (p->is_open)
        return;
    p->is_open = true;
    p->epoch_ns = p->shown_ns = now;
    p->trained_ns = p->first_step = p->tenth = 0;
    p->frame = 0;
    ch__logs_drop(&p->seen);
    p->has_live = p->how == CH_PROGRESS_BAR && ch__live_set(p->fd, p->terminal.can_erase);
    if (!p->has_live)
        return;
    if (!t->is_evaluation) /* the title of an evaluation is known after its first step */
        draw_title(p, t);
    r = record_of(p, t, now, false);
    draw(p, &r);
}

/* Returns true if the progress must be shown now. */
static bool is_due(progress *p, const ch_training *t, int64_t now)
{
    int64_t steps = steps_to_do(t), passed = now - p->shown_ns;
    int64_t tenth = steps > 0 ? steps_done(t) * 10 / steps : 0;

    if (p->has_live)
        return passed >= draw_every;
    if (p->how == CH_PROGRESS_JSON)
        return passed >= objects_every;
    if (steps_done(t) == steps) /* the final line of the epoch comes next */
        return false;
    if (passed < lines_every && (tenth == p->tenth || passed < tenths_every))
        return false;
    p->tenth = tenth;
    return true;
}

static void close_epoch(progress *p, ch_training *t, int64_t now)
{
    if (p->is_open)
        show(p, t, now, true);
    p->is_open = false;
}

static void on_begin(progress *p, ch_training *t, int64_t now)
{
    p->began_ns = p->epoch_ns = now;
    p->is_open = false;
    p->first_step = p->trained_ns = 0;
    ch__logs_drop(&p->expected);
    if (p->how == CH_PROGRESS_JSON)
        print_event(p, t, now, "begin");
}

static void on_step(progress *p, ch_training *t, int64_t now)
{
    open_epoch(p, t, now);
    if (p->first_step == 0 && p->has_live && t->is_evaluation)
        draw_title(p, t);
    if (p->first_step == 0) {
        p->first_ns = now;
        p->first_step = steps_done(t);
        p->first_examples = rows_seen(t);
    }
    if (is_due(p, t, now))
        show(p, t, now, false);
}

static void on_validation(progress *p, ch_training *t, ch_event event, int64_t now)
{
    if (event == CH_ON_VALIDATION_BEGIN)
        p->trained_ns = now;
    /* Without a live line nothing is printed, because training numbers do not change during a
     * validation. */
    if (p->is_open && p->has_live && (event == CH_ON_VALIDATION_BEGIN || is_due(p, t, now)))
        show(p, t, now, false);
}

/* Ends the line. If the training was stopped, shows the final numbers of the epoch. If it
 * failed, the last drawn line stays. */
static void on_end(progress *p, ch_training *t, int64_t now)
{
    char    text[256];
    ch_text o = ch__text(text, sizeof(text));

    if (t->stops)
        close_epoch(p, t, now);
    if (p->has_live)
        ch__live_end(NULL);
    p->has_live = p->is_open = false;
    if (p->how == CH_PROGRESS_JSON) {
        print_event(p, t, now, "end");
    } else if (t->stops) {
        ch__text_add(&o, "Stopped: %s\n", t->why);
        ch__print_above(p->fd, text, (size_t)ch__text_length(&o));
    }
}

/* Maps the validation events of ch_evaluate and ch_predict to the events of an epoch. */
static ch_event as_training(const ch_training *t, ch_event event)
{
    if (!t->is_evaluation)
        return event;
    return event == CH_ON_VALIDATION_BEGIN  ? CH_ON_EPOCH_BEGIN
           : event == CH_ON_VALIDATION_STEP ? CH_ON_STEP
           : event == CH_ON_VALIDATION_END  ? CH_ON_EPOCH_END
                                            : event;
}

static ch_status on(void *self, ch_training *t, ch_event event)
{
    progress *p = self;
    int64_t   now = clock_ns();

    t->peeks = true;
    event = as_training(t, event);
    if (event == CH_ON_STEP) /* first, because it is by far the most frequent event */
        on_step(p, t, now);
    else if (event == CH_ON_BEGIN)
        on_begin(p, t, now);
    else if (event == CH_ON_EPOCH_BEGIN)
        open_epoch(p, t, now);
    else if (event == CH_ON_EPOCH_END) {
        open_epoch(p, t, now); /* for an epoch that was loaded after its last step */
        close_epoch(p, t, now);
    } else if (event == CH_ON_END)
        on_end(p, t, now);
    else if (event != CH_ON_VALIDATION_END)
        on_validation(p, t, event, now);
    t->peeks = false;
    return CH_OK;
}

static void drop(void *self)
{
    progress *p = self;

    if (p->has_live)
        ch__live_end(NULL);
    ch__logs_drop(&p->seen);
    ch__logs_drop(&p->expected);
    ch__free(p);
}

static const ch_callback_ops ops = {
    .name = "progress",
    .events = CH_ON_BEGIN | CH_ON_EPOCH_BEGIN | CH_ON_STEP | CH_ON_EPOCH_END |
              CH_ON_VALIDATION_BEGIN | CH_ON_VALIDATION_STEP | CH_ON_VALIDATION_END | CH_ON_END,
    .on = on,
    .drop = drop,
};

ch_status ch__progress_new(ch_progress how, int fd, ch_callback **out)
{
    progress *p;

    if ((int)how < CH_PROGRESS_AUTO || how > CH_PROGRESS_JSON)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "progress: the kind is %d, want CH_PROGRESS_AUTO, _BAR, _LINES or _JSON", (int)how);
    p = ch__calloc(1, sizeof(*p));
    if (p == NULL)
        return ch__fail_memory("progress");
    p->fd = fd;
    p->terminal = ch__terminal(fd);
    p->is_utf8 = ch__locale_is_utf8();
    p->how = how;
    if (how == CH_PROGRESS_AUTO)
        p->how = p->terminal.can_erase ? CH_PROGRESS_BAR : CH_PROGRESS_LINES;
    return ch__callback_make(&ops, p, out);
}
