/* base/counter_table.c -- the list of published counters, and the rows of base/ itself.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/counter_table.h"

#include <pthread.h>
#include <stddef.h>

#include "base/mem.h"
#include "base/sys.h"
#include "base/thread.h"

static int64_t read_live(void *arg)
{
    (void)arg;
    return ch__mem_live();
}

static int64_t read_allocs(void *arg)
{
    (void)arg;
    return ch__mem_allocs();
}

static int64_t read_peak(void *arg)
{
    (void)arg;
    return ch__peak_bytes();
}

static int64_t read_file_calls(void *arg)
{
    (void)arg;
    return ch__file_calls();
}

static int64_t read_wakes(void *arg)
{
    (void)arg;
    return ch__wake_count();
}

/* clang-format off */
static const ch_counter_row base_row[] = {
    {.name = "memory_blocks", .unit = "blocks", .help = "blocks of memory in use",
     .read = read_live},
    {.name = "memory_allocations", .unit = "allocations", .is_total = true,
     .help = "requested allocations, including refused ones", .read = read_allocs},
    {.name = "memory_peak_bytes", .unit = "bytes", .is_total = true,
     .help = "peak resident memory of the process", .read = read_peak},
    {.name = "file_calls", .unit = "calls", .is_total = true,
     .help = "system calls on files, except close, unlink, lock and dup",
     .read = read_file_calls},
    {.name = "thread_wakes", .unit = "wakes", .is_total = true,
     .help = "number of times that a sleeping thread was woken", .read = read_wakes},
};
/* clang-format on */

/* The rows that were added. The lock is held while they are read, so that a row that was
 * removed is not read any more. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ch_counter_row *first, *last;

void ch__counter_row_add(ch_counter_row *row)
{
    pthread_mutex_lock(&lock);
    row->prev = last;
    row->next = NULL;
    *(last != NULL ? &last->next : &first) = row;
    last = row;
    pthread_mutex_unlock(&lock);
}

void ch__counter_row_remove(ch_counter_row *row)
{
    pthread_mutex_lock(&lock);
    *(row->prev != NULL ? &row->prev->next : &first) = row->next;
    *(row->next != NULL ? &row->next->prev : &last) = row->prev;
    row->prev = row->next = NULL;
    pthread_mutex_unlock(&lock);
}

void ch__counter_rows_visit(void (*visit)(void *arg, const ch_counter_row *row, int64_t value),
                            void *arg)
{
    for (size_t i = 0; i < sizeof(base_row) / sizeof(base_row[0]); i++)
        visit(arg, &base_row[i], base_row[i].read(base_row[i].arg));
    pthread_mutex_lock(&lock);
    for (const ch_counter_row *row = first; row != NULL; row = row->next)
        visit(arg, row, row->read(row->arg));
    pthread_mutex_unlock(&lock);
}
