/* test/save/slow_disk.h -- a disk that writes nothing in the background before it is opened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SAVE_SLOW_DISK_H
#define TEST_SAVE_SLOW_DISK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sys.h"
#include "base/thread.h"

/* Threads wait after their first write. The program's own thread does not wait. */
typedef struct t_slow_disk {
    ch_gate     gate;
    atomic_bool is_open;
    pthread_t   program;
} t_slow_disk;

static inline void t_wait_for_disk(void *arg, const ch_file_op *op)
{
    t_slow_disk *d = arg;

    while (op->kind == CH_FILE_WRITE && !pthread_equal(pthread_self(), d->program) &&
           !atomic_load(&d->is_open)) {
        unsigned seen = atomic_load(&d->gate);

        if (!atomic_load(&d->is_open))
            ch__gate_idle_until(&d->gate, seen, INT64_MAX);
    }
}

/* Makes all writes of other threads wait until t_open_disk. The caller must end this with
 * ch__file_observe(NULL, NULL). */
static inline void t_slow_disk_begin(t_slow_disk *d)
{
    *d = (t_slow_disk){.program = pthread_self()};
    ch__file_observe(t_wait_for_disk, d);
}

static inline void t_open_disk(t_slow_disk *d)
{
    atomic_store(&d->is_open, true);
    ch__gate_open(&d->gate);
}

#endif
