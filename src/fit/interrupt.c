/* fit/interrupt.c -- the handler of SIGINT.   SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fit/interrupt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/terminal.h"

static pthread_mutex_t  lock = PTHREAD_MUTEX_INITIALIZER;
static int              n_users;   /* catches without a release; guarded by `lock` */
static bool             is_ours;   /* our handler is installed */
static struct sigaction before;    /* action before ours */
static atomic_int       n_signals; /* signals since `install` */

/* Counts the signal. At the second signal, restores the default action and raises the signal
 * again, so that the process ends as if it had no handler. The signal is blocked while the
 * handler runs, and is delivered when it returns. */
static void on_interrupt(int sig)
{
    int saved = errno;

    if (atomic_fetch_add(&n_signals, 1) > 0) {
        struct sigaction usual = {.sa_handler = SIG_DFL};

        ch__live_leave();
        sigemptyset(&usual.sa_mask);
        sigaction(sig, &usual, NULL);
        raise(sig);
    }
    errno = saved;
}

static void install(void)
{
    /* SA_RESTART, because a first Ctrl-C must not make reads of data fail with EINTR. */
    struct sigaction ours = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};

    sigemptyset(&ours.sa_mask);
    atomic_store(&n_signals, 0);
    is_ours = sigaction(SIGINT, NULL, &before) == 0 &&
              ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_IGN) &&
              sigaction(SIGINT, &ours, NULL) == 0;
}

/* Restores the previous action, unless other code has replaced our handler meanwhile. */
static void restore(void)
{
    struct sigaction now;

    if (is_ours && sigaction(SIGINT, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
        now.sa_handler == on_interrupt)
        sigaction(SIGINT, &before, NULL);
    is_ours = false;
    atomic_store(&n_signals, 0);
}

void ch__interrupt_catch(void)
{
    pthread_mutex_lock(&lock);
    if (n_users++ == 0)
        install();
    pthread_mutex_unlock(&lock);
}

void ch__interrupt_release(void)
{
    pthread_mutex_lock(&lock);
    if (--n_users == 0)
        restore();
    pthread_mutex_unlock(&lock);
}

bool ch__interrupted(void)
{
    return atomic_load_explicit(&n_signals, memory_order_relaxed) > 0;
}
