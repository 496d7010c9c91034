/* fit/progress_text.h -- how far a training is, as text: a line for terminals, a line for
 * files, an object.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PROGRESS_TEXT_H
#define FIT_PROGRESS_TEXT_H

#include "fit/training.h"
#include "tensor/print.h"

/* How far it is and how fast it goes. */
typedef struct ch_pace {
    const char *what;        /* "Epoch 3/5" */
    int64_t     step, steps; /* steps: CH_UNKNOWN, or how many there will be */
    double      seconds;     /* since the epoch began */
    double      per_step;    /* seconds; 0: not known yet */
    double      per_second;  /* examples; 0: not known yet */
    bool        is_done;
    bool        is_validating;
    int64_t     validation_step, validation_steps;
    int beat; /* how often it was drawn: where the number of steps is not known, something moves */
} ch_pace;

/* What is drawn on. */
typedef struct ch_progress_style {
    int  columns; /* the last stays free */
    bool has_color, is_utf8;
    const ch_logs
        *likely; /* the numbers to come, while there are none; NULL: a loss, an accuracy */
} ch_progress_style;

/* Its name begins with "val_". */
bool ch__is_of_validation(const char *name);
/* The columns that these numbers take, where they are of the usual size. */
int ch__progress_reserve(const ch_logs *l, bool is_utf8, bool with_validation);
/* Returns how many columns the last line has. Numbers that do not fit are left out; of a line
 * that is done they are on lines of their own below. */
int ch__progress_live(ch_text *o, const ch_pace *p, const ch_logs *l,
                      const ch_progress_style *look);
/* No control characters but the newline at its end. */
void ch__progress_plain(ch_text *o, const ch_pace *p, const ch_logs *l);

/* An event, and when it was. */
typedef struct ch_moment {
    const char *event;
    int         epoch, epochs; /* from 0 */
    double      seconds;       /* since the training began */
    const char *why;           /* it was stopped; NULL: it was not */
} ch_moment;
/* {"event": "epoch", "epoch": 0, "epochs": 5, "step": 469, "steps": 469, "seconds": 3.2,
 * "examples_per_second": 2e4, "logs": {"loss": 0.31}} and a newline; what is not known, or not
 * finite, is null. */
void ch__progress_object(ch_text *o, const ch_moment *at, const ch_pace *p, const ch_logs *l);

/* "0.3125", "1.2000e-05"; "12s", "2:05", "1:02:03", and "1.2s" of what has passed;
 * "2.1ms/step"; "20.1k". */
typedef struct ch_short {
    char text[32];
} ch_short;
ch_short ch__short_number(double x);
ch_short ch__short_time(double seconds);
ch_short ch__short_elapsed(double seconds);
ch_short ch__short_step(double seconds);
ch_short ch__short_rate(double per_second);

#endif
