/* fit/interrupt.c -- the handler of SIGINT, SIGTERM and SIGUSR1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fit/interrupt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/terminal.h"
#include "base/thread.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A signal that trainings may catch. */
static struct caught {
    int  number;
    bool ends;   /* the second signal ends the process */
    bool chains; /* the handler of the program is called after ours */

    int              n_users;   /* catches without a release; guarded by `lock` */
    bool             is_ours;   /* our handler is installed */
    struct sigaction before;    /* action before ours */
    atomic_int       n_signals; /* signals since `install` */
    atomic_llong     first_ns;  /* time of the first of them */
} caught[CH_INTERRUPTS] = {
    [CH_INTERRUPT_STOP] = {.number = SIGINT, .ends = true},
    [CH_INTERRUPT_TERMINATE] = {.number = SIGTERM, .ends = true, .chains = true},
    [CH_INTERRUPT_SAVE] = {.number = SIGUSR1, .chains = true},
};

/* Restores the default action and raises the signal again, so that the process ends as if it
 * had no handler. The signal is blocked while the handler runs, and is delivered when it
 * returns. */
static void end_process(int sig)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};

    ch__live_leave();
    sigemptyset(&usual.sa_mask);
    sigaction(sig, &usual, NULL);
    raise(sig);
}

static void call_before(const struct sigaction *before, int sig, siginfo_t *info, void *context)
{
    if ((before->sa_flags & SA_SIGINFO) != 0)
        before->sa_sigaction(sig, info, context);
    else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN)
        before->sa_handler(sig);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    int            saved = errno;
    struct caught *c = caught;

    while (c->number != sig)
        c++;
    if (atomic_fetch_add(&c->n_signals, 1) == 0)
        atomic_store(&c->first_ns, ch__now_ns());
    else if (c->ends)
        end_process(sig);
    if (c->chains)
        call_before(&c->before, sig, info, context);
    errno = saved;
}

static void clear(struct caught *c)
{
    atomic_store(&c->n_signals, 0);
    atomic_store(&c->first_ns, 0);
}

static void install(struct caught *c)
{
    /* SA_RESTART, because a first signal must not make reads of data fail with EINTR. */
    struct sigaction ours = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};

    sigemptyset(&ours.sa_mask);
    clear(c);
    c->is_ours = sigaction(c->number, NULL, &c->before) == 0 &&
                 ((c->before.sa_flags & SA_SIGINFO) != 0 || c->before.sa_handler != SIG_IGN) &&
                 sigaction(c->number, &ours, NULL) == 0;
}

/* Restores the previous action, unless other code has replaced our handler meanwhile. Returns
 * the number of signals until then. */
static int restore(struct caught *c)
{
    struct sigaction now;
    int              n;

    if (c->is_ours && sigaction(c->number, NULL, &now) == 0 &&
        (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal)
        sigaction(c->number, &c->before, NULL);
    c->is_ours = false;
    n = atomic_load(&c->n_signals);
    clear(c);
    return n;
}

void ch__interrupt_catch(ch_interrupt which)
{
    pthread_mutex_lock(&lock);
    if (caught[which].n_users++ == 0)
        install(&caught[which]);
    pthread_mutex_unlock(&lock);
}

int ch__interrupt_release(ch_interrupt which)
{
    int n;

    pthread_mutex_lock(&lock);
    n = --caught[which].n_users == 0 ? restore(&caught[which]) : ch__interrupts(which);
    pthread_mutex_unlock(&lock);
    return n;
}

int ch__interrupts(ch_interrupt which)
{
    return atomic_load_explicit(&caught[which].n_signals, memory_order_relaxed);
}

int64_t ch__interrupt_ns(ch_interrupt which)
{
    return atomic_load(&caught[which].first_ns);
}
