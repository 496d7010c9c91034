/* test/save/counted.h -- a checkpoint of one number, and its manager, whose clock is a variable.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SAVE_COUNTED_H
#define TEST_SAVE_COUNTED_H

#include <sys/stat.h>

#include "help.h"
#include "save/manager.h"

static double t_clock_seconds = 10000;

static inline double t_clock(void)
{
    return t_clock_seconds;
}

typedef struct t_counted {
    ch_checkpoint         *c;
    ch_var                *number;
    ch_checkpoint_manager *m;
    ch_manager_options     opt;
    const char            *directory; /* in the folder of the test */
} t_counted;

static inline void t_open_manager(t_counted *x)
{
    t_ok(ch__manager_new(x->c, t_path(x->directory), &x->opt, t_clock, &x->m));
}

/* Begins with the number 0. An interval counts steps of the number. */
static inline void t_begin_counted(t_counted *x, const char *directory, ch_manager_options opt)
{
    ch_tensor *zero = NULL;

    t_ok(ch_tensor_scalar(CH_I64, 0, &zero));
    *x = (t_counted){.number = t_var(NULL, "number", zero), .opt = opt, .directory = directory};
    x->opt.write.sync = CH_OFF;
    if (opt.interval > 0)
        x->opt.step = x->number;
    t_ok(ch_checkpoint_new(&x->c));
    t_ok(ch_checkpoint_add_var(x->c, "number", x->number));
    t_open_manager(x);
}

static inline void t_end_counted(t_counted *x)
{
    ch_checkpoint_manager_unref(x->m);
    ch_checkpoint_unref(x->c);
    ch_var_unref(x->number);
}

static inline void t_set_number(t_counted *x, int64_t number)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_scalar(CH_I64, (double)number, &t));
    t_ok(ch_var_set(x->number, t));
    ch_tensor_unref(t);
}

static inline int64_t t_get_number(t_counted *x)
{
    ch_tensor *t = NULL;
    int64_t    number;

    t_ok(ch_var_get(x->number, &t));
    number = *(const int64_t *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return number;
}

/* Returns true if the folder of the test has the checkpoint `name`. */
static inline bool t_has_checkpoint(const char *name)
{
    struct stat about;
    char        path[600];

    snprintf(path, sizeof(path), "%s.index", t_path(name));
    return stat(path, &about) == 0;
}

#endif
