/* fit/report/tensorboard.c -- the callback that writes event files for TensorBoard.
 *
 * The tags are those of Keras:
 *
 *     train:       epoch_loss, epoch_accuracy, epoch_learning_rate by epoch;
 *                  net/dense/kernel/histogram by epoch; batch_loss, batch_accuracy by step;
 *                  the texts "model" and "step"
 *     validation:  epoch_loss, epoch_accuracy by epoch
 *
 * A `board` is the state of the callback. Each training writes new files (fit/report/events.h),
 * also if it continues from a checkpoint: a reader may be at any byte of the old files, so
 * these must not be truncated. The files are flushed at the end of an epoch, before a
 * validation, and at most once a second after the scalars of a step, so that TensorBoard shows
 * them soon.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "fit/callback.h"
#include "fit/report/events.h"
#include "tensor/tensor.h"

/* Least milliseconds between two writes of a file, and between two flushes after steps. */
enum { FLUSH_MS = 5000, STEPS_MS = 1000 };

typedef struct board {
    ch_callback_ops ops; /* own copy, because `events` has CH_ON_STEP only if every_steps > 0 */
    char           *directory;
    int64_t         every_steps;
    int             histograms;         /* epochs between histograms; 0: none */
    bool            has_graph;          /* each training writes the texts "model" and "step" */
    bool            needs_graph;        /* this training has not written them yet */
    ch_events      *train, *validation; /* NULL: not open */
    /* Time of the last flush after the scalars of a step; 0: none yet. */
    int64_t flushed_ns;
} board;

/* ---- files ---- */

static ch_status open_events(board *b, const char *name, ch_events **e)
{
    size_t    room = strlen(b->directory) + strlen(name) + 2;
    char     *folder;
    ch_status rc;

    if (*e != NULL)
        return CH_OK;
    folder = ch__malloc(room);
    if (folder == NULL)
        return ch__fail_memory(b->directory);
    snprintf(folder, room, "%s/%s", b->directory, name);
    rc = ch__events_open(folder, FLUSH_MS, e);
    ch__free(folder);
    return rc;
}

static ch_status flush(board *b)
{
    ch_status rc = b->train != NULL ? ch__events_flush(b->train) : CH_OK;

    return rc == CH_OK && b->validation != NULL ? ch__events_flush(b->validation) : rc;
}

/* Closes both files, also if closing the first fails. */
static ch_status close_all(board *b)
{
    ch_status train = ch__events_close(b->train);
    ch_status validation = ch__events_close(b->validation);

    b->train = b->validation = NULL;
    return train != CH_OK ? train : validation;
}

/* ---- numbers ---- */

static ch_status add_scalar(ch_events *e, const char *kind, const char *name, int64_t step,
                            double value)
{
    size_t    room = strlen(kind) + strlen(name) + 1;
    char     *tag = ch__malloc(room);
    ch_status rc;

    if (tag == NULL)
        return ch__fail_memory("tensorboard");
    snprintf(tag, room, "%s%s", kind, name);
    rc = ch__events_add(e, step,
                        &(ch_summary){.kind = CH_SUMMARY_SCALAR, .tag = tag, .value = value});
    ch__free(tag);
    return rc;
}

static ch_status add_epoch(board *b, ch_training *t)
{
    const ch_logs *logs = ch__training_logs(t);
    ch_status      rc = CH_OK;

    for (int i = 0; rc == CH_OK && i < logs->n; i++) {
        const char *name = logs->at[i].name;
        bool        is_validation = ch__is_of_validation(name);

        if (is_validation)
            rc = open_events(b, "validation", &b->validation);
        if (rc == CH_OK)
            rc = add_scalar(is_validation ? b->validation : b->train, "epoch_",
                            is_validation ? name + strlen("val_") : name, t->epoch,
                            logs->at[i].value);
    }
    return rc;
}

static ch_status add_rate(board *b, ch_training *t)
{
    double    rate;
    ch_status rc;

    if (ch_training_optimizer(t) == NULL)
        return CH_OK;
    rc = ch_optimizer_rate(ch_training_optimizer(t), &rate);
    if (rc != CH_OK)
        return rc;
    return add_scalar(b->train, "epoch_", "learning_rate", ch_training_epoch(t), rate);
}

/* Adds all scalars of a step, and then flushes them together. The first such step of a training
 * is flushed at once. */
static ch_status add_step(board *b, ch_training *t)
{
    const ch_logs *logs = ch__training_logs(t);
    int64_t        now = ch__now_ns();
    ch_status      rc = CH_OK;

    for (int i = 0; rc == CH_OK && i < logs->n; i++)
        if (!ch__is_of_validation(logs->at[i].name))
            rc = add_scalar(b->train, "batch_", logs->at[i].name, t->step, logs->at[i].value);
    if (rc != CH_OK ||
        (b->flushed_ns != 0 && now - b->flushed_ns < STEPS_MS * (int64_t)1000000))
        return rc;
    b->flushed_ns = now;
    return ch__events_flush(b->train);
}

/* ---- histograms ---- */

static ch_status add_histogram(board *b, ch_var *v, int64_t step)
{
    size_t       room = strlen(ch_var_name(v)) + sizeof("/histogram");
    char        *tag = ch__malloc(room);
    ch_tensor   *all = NULL, *value = NULL;
    ch_histogram h = {0};
    ch_status    rc = tag != NULL ? ch_var_get(v, &value) : ch__fail_memory("tensorboard");

    if (rc == CH_OK)
        rc = ch_tensor_contiguous(value, &all);
    if (rc == CH_OK) {
        snprintf(tag, room, "%s/histogram", ch_var_name(v));
        h = ch__histogram_of(ch_tensor_dtype(all), ch_tensor_count(all), ch_tensor_data(all));
        rc = ch__events_add(
            b->train, step,
            &(ch_summary){.kind = CH_SUMMARY_HISTOGRAM, .tag = tag, .histogram = &h});
    }
    ch_tensor_unref(all);
    ch_tensor_unref(value);
    ch__free(tag);
    return rc;
}

static ch_status add_histograms(board *b, ch_training *t)
{
    ch_var *const *v = NULL;
    int            n = ch_model_vars(ch_training_model(t), &v);
    ch_status      rc = CH_OK;

    for (int i = 0; rc == CH_OK && i < n; i++)
        if (ch_var_dtype(v[i]) != CH_STR)
            rc = add_histogram(b, v[i], ch_training_epoch(t));
    return rc;
}

/* ---- text ---- */

static ch_status add_text(board *b, const char *tag, int64_t step, const char *text, size_t n)
{
    return ch__events_add(
        b->train, step, &(ch_summary){.kind = CH_SUMMARY_TEXT, .tag = tag, .text = {text, n}});
}

/* Adds a text with each line indented by four spaces, which Markdown shows verbatim. */
static ch_status add_lines(board *b, const char *tag, int64_t step, const char *text)
{
    ch_bytes_builder p = {0};
    ch_status        rc;

    while (*text != '\0') {
        size_t n = strcspn(text, "\n");

        ch__bytes_builder_text(&p, "    ");
        ch__bytes_builder_add(&p, text, n);
        ch__bytes_builder_text(&p, "\n");
        text += n + (text[n] == '\n');
    }
    rc = p.has_failed ? ch__fail_memory("tensorboard") : add_text(b, tag, step, p.at, p.n);
    ch__bytes_builder_drop(&p);
    return rc;
}

static int print_model(const void *training, char *text, size_t size)
{
    const ch_training *t = training;

    return ch_model_print(ch_training_model(t), text, size);
}

static int print_step(const void *training, char *text, size_t size)
{
    const ch_training *t = training;

    return ch_graph_print(ch_function_graph(t->function), text, size);
}

static ch_status add_printed(board *b, const char *tag, const ch_training *t,
                             int (*print)(const void *training, char *text, size_t size))
{
    size_t    room = (size_t)print(t, NULL, 0) + 1;
    char     *text = ch__malloc(room);
    ch_status rc;

    if (text == NULL)
        return ch__fail_memory("tensorboard");
    print(t, text, room);
    rc = add_lines(b, tag, ch_training_epoch(t), text);
    ch__free(text);
    return rc;
}

/* Adds the texts of the model and the step. Called at the end of the first epoch, because then
 * the model has been called and the step has been recorded. */
static ch_status add_graph(board *b, const ch_training *t)
{
    ch_status rc = add_printed(b, "model", t, print_model);

    b->needs_graph = false;
    if (rc == CH_OK && t->function != NULL && ch_function_graph(t->function) != NULL)
        rc = add_printed(b, "step", t, print_step);
    return rc;
}

/* ---- the callback ---- */

static ch_status end_epoch(board *b, ch_training *t)
{
    ch_status rc = add_epoch(b, t);

    if (rc == CH_OK)
        rc = add_rate(b, t);
    if (rc == CH_OK && b->histograms > 0 && ch_training_epoch(t) % b->histograms == 0)
        rc = add_histograms(b, t);
    if (rc == CH_OK && b->needs_graph)
        rc = add_graph(b, t);
    return rc == CH_OK ? flush(b) : rc;
}

static ch_status board_on(void *self, ch_training *t, ch_event event)
{
    board *b = self;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if (event == CH_ON_BEGIN) {
        b->flushed_ns = 0;
        b->needs_graph = b->has_graph;
        return open_events(b, "train", &b->train);
    }
    if (event == CH_ON_VALIDATION_BEGIN) /* a validation may take long */
        return flush(b);
    if (event == CH_ON_EPOCH_END)
        return end_epoch(b, t);
    if (event == CH_ON_END)
        return close_all(b);
    return ch_training_step(t) % b->every_steps == 0 ? add_step(b, t) : CH_OK;
}

static void board_drop(void *self)
{
    board *b = self;

    (void)close_all(b);
    ch__free(b->directory);
    ch__free(b);
}

ch_status ch_callback_tensorboard(const char                            *directory,
                                  const ch_callback_tensorboard_options *opt, ch_callback **out)
{
    static const ch_callback_tensorboard_options none;
    board                                       *b;

    opt = opt != NULL ? opt : &none;
    if (directory == NULL || directory[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "tensorboard: directory is NULL or empty");
    if (opt->every_steps < 0 || opt->histograms < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "tensorboard: every_steps is %lld and histograms %d, want 0 or more",
                        (long long)opt->every_steps, opt->histograms);
    b = ch__calloc(1, sizeof(*b));
    if (b == NULL)
        return ch__fail_memory("tensorboard");
    *b = (board){.ops = {.name = "tensorboard",
                         .events = CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END,
                         .on = board_on,
                         .drop = board_drop},
                 .directory = ch__strdup(directory),
                 .every_steps = opt->every_steps,
                 .histograms = opt->histograms,
                 .has_graph = opt->graph != CH_OFF};
    if (b->every_steps > 0)
        b->ops.events |= CH_ON_STEP | CH_ON_VALIDATION_BEGIN;
    if (b->directory == NULL) {
        board_drop(b);
        return ch__fail_memory("tensorboard");
    }
    return ch__callback_make(&b->ops, b, out);
}

ch_status ch_callback_tensorboard_text(ch_callback *tensorboard, const char *tag, int64_t step,
                                       const char *text)
{
    board    *b = ch__callback_self(tensorboard, board_on);
    ch_status rc = ch__check_not_null("tensorboard_text", "tag", tag, "text", text);

    if (rc != CH_OK)
        return rc;
    if (b == NULL)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "tensorboard_text: the callback was not created by ch_callback_tensorboard");
    rc = open_events(b, "train", &b->train);
    if (rc == CH_OK)
        rc = add_text(b, tag, step, text, strlen(text));
    return rc == CH_OK ? ch__events_flush(b->train) : rc;
}
