/* fit/report/progress_text.h -- progress as text: for terminals, for files, as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_PROGRESS_TEXT_H
#define FIT_REPORT_PROGRESS_TEXT_H

#include "fit/training.h"
#include "tensor/print.h"

/* The state of a training at a moment, as all three texts show it. Steps and speed are those of
 * the epoch, or of the pass of ch_evaluate or ch_predict. progress.c fills it. */
typedef struct ch_progress_record {
    const char *event;         /* "begin", "step", "epoch", "evaluation" or "end" */
    char        title[64];     /* "Epoch 3/5", "Evaluate" */
    int         epoch, epochs; /* current epoch, from 0; planned epochs, 0: not known */
    int64_t     step, steps;   /* steps of the epoch done; planned steps, negative: not known */
    double      seconds, epoch_seconds; /* seconds since the training and the epoch began */
    double      per_step;               /* seconds per step; 0: not known yet */
    double      per_second;             /* examples per second; 0: not known yet */
    bool        is_done;                /* the epoch has ended */
    bool        is_validating;
    int64_t     validation_step, validation_steps;
    const char *why;     /* reason why the training was stopped; NULL: it was not */
    const ch_logs *logs; /* borrowed */
} ch_progress_record;

/* The properties of the terminal, and the expected logs. */
typedef struct ch_progress_style {
    int  columns; /* width of the terminal; the last column stays free */
    bool has_color, is_utf8;
    /* Number of times the line was drawn: it moves the bar if the number of steps is not
     * known. */
    int frame;
    /* Logs to leave room for while there are none yet. NULL: a loss and an accuracy. */
    const ch_logs *expected;
} ch_progress_style;

/* Returns the number of columns that the logs take if each number has 6 columns. */
int ch__progress_reserve(const ch_logs *l, bool is_utf8, bool with_validation);
/* Writes the live line and returns the number of columns of its last line. If r->is_done, the
 * line stays: logs that do not fit are on further lines below. Otherwise they are left out. */
int ch__progress_live(ch_text *o, const ch_progress_record *r, const ch_progress_style *style);
/* Writes a line for a file. It has no control characters except the newline at its end. */
void ch__progress_plain(ch_text *o, const ch_progress_record *r);
/* Writes a JSON object and a newline:
 *
 *     {"event": "epoch", "epoch": 0, "epochs": 5, "step": 469, "steps": 469, "seconds": 3.2,
 *      "examples_per_second": 2e4, "logs": {"loss": 0.31}}
 *
 * Numbers that are not known or not finite are null. */
void ch__progress_object(ch_text *o, const ch_progress_record *r);

/* Short texts of a log ("0.3125", "1.2000e-05"), a duration ("12s", "2:05", "1:02:03"), an
 * elapsed time (the same, but "1.2s" below ten seconds), a time per step ("2.1ms/step") and a
 * rate ("20.1k"). */
typedef struct ch_short {
    char text[32];
} ch_short;
ch_short ch__short_number(double x);
ch_short ch__short_time(double seconds);
ch_short ch__short_elapsed(double seconds);
ch_short ch__short_step(double seconds);
ch_short ch__short_rate(double per_second);

#endif
