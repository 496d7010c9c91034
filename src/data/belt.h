/* data/belt.h -- a belt: what a stage needs done, done beforehand by whoever has time.
 *
 * Work comes in items, each some elements. An item is pulled, that is, its elements are taken from
 * below; then made, which turns them into what the stage gives; then taken. Pulling goes in order,
 * one thread at a time; making goes on in any number of threads; taking goes in the order of
 * pulling again, unless the belt is unordered. So what comes out does not depend on who did it.
 *
 *     static void make(ch_cursor *c, ch_item *i)   { ... each i->slot[k] ... }
 *     static const ch_belt_ops ops = {ch__belt_pull_input, make};
 *     ... rc = ch__belt_open(c, &ops, &(ch_belt_options){.want = 1}); ...
 *     const ch_stage ch__stage_x = {.name = "x", ..., CH_BELTED, .close = ch__close_nothing};
 *
 * The threads are the iterator's. Each looks for work from the sources on; one
 * that has to wait for an item does work of that belt in the meantime. With no threads, whoever
 * takes does it all, an element at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_BELT_H
#define DATA_BELT_H

#include <pthread.h>

#include "data/data.h"

/* Those who wait for one thing, under the iterator's lock. To wake a thread costs more than most elements
 * do, so there is one for each thing. */
typedef struct ch_crowd {
    pthread_cond_t changed;
    int            n;
} ch_crowd;

void ch__crowd_init(ch_crowd *c);
void ch__crowd_tell(ch_crowd *c);     /* all of them */
void ch__crowd_tell_one(ch_crowd *c); /* one, who will tell the next if there is more */

/* What stands in a place: an element, or the error that there was instead. */
typedef struct ch_slot {
    ch_element *element;
    ch_status   rc;
    bool        is_between; /* an error that no element is missing for (ch__error_between) */
    char       *text;       /* of an error; NULL: no memory for it */
    int64_t     extra;      /* from pull to make */
} ch_slot;

typedef struct ch_item {
    bool     is_ready;
    bool     has_end;  /* nothing comes behind it */
    bool     is_last;  /* of make: what was pulled behind it does not count */
    bool     has_lost; /* there was no memory for a result: an error, behind those there are */
    int      n, taken;
    int      want;  /* how many pull should put there */
    int64_t  bytes; /* that it is charged for (data/budget.h) */
    int64_t  first; /* the place of its first element among all that the belt pulled */
    char    *note;  /* of pull, for make: a file's name, until pull sets another. NULL: none */
    int      capacity;
    ch_slot *slot;
} ch_item;

typedef struct ch_belt_ops {
    /* Puts up to i->want results there with ch__item_add; sets has_end where there are no more. */
    void (*pull)(ch_cursor *c, ch_item *i);
    /* Replaces them by others, at most as many, or leaves them. NULL: leaves them all. */
    void (*make)(ch_cursor *c, ch_item *i);
} ch_belt_ops;

typedef struct ch_belt_options {
    int  want;      /* elements of an item; 0: as many as make an item worth a thread's while */
    int  ahead;     /* items; 0: as it turns out; CH_OFF: none, who takes an item makes it */
    int  at_once;   /* threads that make; 0: any number */
    bool unordered; /* take what is ready first */
} ch_belt_options;

typedef struct ch_belt ch_belt;

/* Those who wait for something of this belt. */
ch_crowd *ch__belt_crowd(ch_belt *l);

/* c->belt, which ch__cursor_close closes before anything else of the cursor. */
ch_status ch__belt_open(ch_cursor *c, const ch_belt_ops *ops, const ch_belt_options *opt);
void      ch__belt_close(ch_belt *l); /* NULL is fine */

/* The next result, its element or error; NULL at the end. */
ch_status ch__belt_next(ch_belt *l, ch_element **out);

/* Nobody pulls or makes from hold to release: what is below may be changed. */
void ch__belt_hold(ch_belt *l);
void ch__belt_release(ch_belt *l);
/* While held: forgets what is done already, and that there was an end. */
void ch__belt_clear(ch_belt *l);
/* While held: what is done and not yet taken. */
void      ch__belt_save(ch_belt *l, ch_saver *s);
ch_status ch__belt_load(ch_belt *l, ch_loader *from);

/* For `taker`: of these cursors, each with a belt or NULL, one that has a result or its end to give, from
 * `first` on, in a circle. Waits for one, and works for all of them meanwhile. */
ch_status ch__belt_any(const ch_cursor *taker, ch_cursor *const *c, int n, int first, int *out);

/* What a stage does that gives what comes off its belt, and keeps nothing else. */
ch_status ch__belted_next(ch_cursor *c, ch_element **out);
ch_status ch__belted_rewind(ch_cursor *c);
void      ch__belted_save(ch_cursor *c, ch_saver *s);
ch_status ch__belted_load(ch_cursor *c, ch_loader *l);
/* clang-format off */
#define CH_BELTED                                                                              \
    .next = ch__belted_next, .rewind = ch__belted_rewind,                                      \
    .save = ch__belted_save, .load = ch__belted_load
/* clang-format on */

/* A pull that takes from the only input. */
void ch__belt_pull_input(ch_cursor *c, ch_item *i);

/* For pull: one more. */
void ch__item_add(ch_item *i, ch_element *e);      /* takes it over */
void ch__item_add_error(ch_item *i, ch_status rc); /* with this thread's message */
/* From a cursor until i->want are there or it ends. */
void ch__item_fill(ch_item *i, ch_cursor *from);
void ch__item_note(ch_item *i, const char *text);
/* For make: leaves out slots that were dropped. */
void ch__item_close_gaps(ch_item *i);
/* Puts this thread's error in the place of what is there. */
void ch__slot_fail(ch_slot *s, ch_status rc);
void ch__slot_drop(ch_slot *s); /* frees what is there */

/* ---- of the iterator ---- */

/* Work of this belt, if there is some: what idle threads do. With the iterator's lock held, which
 * is let go of meanwhile. */
bool ch__belt_work(ch_belt *l);
/* With the iterator's lock held: the belt's cursor while somebody pulls or makes, else NULL. */
const ch_cursor *ch__belt_busy(const ch_belt *l);
void             ch__belt_profile(const ch_belt *l, ch_stage_profile *out);
/* Returns true if each item of the belt is timed. If the iterator has no threads, only items of the
 * last belt are: the others' items are single elements, and reading the clock takes longer than
 * most elements do. Their work is then part of their cursors' calls, of which few are timed. */
bool ch__belt_is_timed(const ch_belt *l);
/* How long this thread worked for belts so far, by the processor's time. */
int64_t ch__belt_helped_ns(void);

#endif
