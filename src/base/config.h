/* base/config.h -- the settings of the library that come from the environment.
 *
 * Every setting is a row: name, default as text, help, place, parser. The environment is read
 * here and nowhere else (clusters: cluster/resolver.c; terminals: base/terminal.c), once, into a struct.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <stdbool.h>

#include "cohort/status.h"

#define CH_MAX_THREADS 1024 /* of a device */

/* How the replicas of a process run. The bits are the same. */
typedef enum ch_replicas_way {
    CH_REPLICAS_AUTO,    /* in the way that is faster, as measured */
    CH_REPLICAS_THREADS, /* each on a thread of its own */
    CH_REPLICAS_TURNS    /* all on the caller's thread, unless the step has host calls */
} ch_replicas_way;

typedef struct ch_config {
    char devices[256]; /* COHORT_DEVICES: "CPU=2,GPU=4"; "" is one CPU device a core */
    int  threads;      /* COHORT_THREADS: in each device, to 1024; 0 is cores / devices */
    ch_replicas_way replicas; /* COHORT_REPLICAS: "auto", "threads", "turns" */
    char            simd[16]; /* COHORT_SIMD: "auto", "base", "avx2", "avx512" */
    bool            fuse;     /* COHORT_FUSE: fuse elementwise chains */
    bool            epilogue; /* COHORT_EPILOGUE: fuse biases and activations into products */
    bool            engines;  /* COHORT_ENGINES: use oneDNN where it fits */
    int             wait_notice_ms; /* COHORT_WAIT_NOTICE_MS: a wait says whom it waits for */
    int             wait_limit_ms;  /* COHORT_WAIT_LIMIT_MS: and is an error after this */
    bool check_copies; /* COHORT_CHECK_COPIES: of mirrored variables, after each run */
    bool interpret;    /* COHORT_INTERPRET: run node by node, unfused, checked */
    char trace[256];   /* COHORT_TRACE: a file to be written; "" is none */
    int  trace_limit;  /* COHORT_TRACE_LIMIT: events in it, at most */
} ch_config;

/* The process's settings, read on first use. A value that does not parse is logged as a
 * warning that names variable, value and what is expected, and its default is taken. */
const ch_config *ch__config(void);

/* Sets one by name ("threads", "2") for tests and the command line: before first use of what
 * it governs. INVALID_ARGUMENT names the setting and what it takes. */
CH_MUST_CHECK ch_status ch__config_set(const char *name, const char *value);

/* The rows, for --help: false past the last. */
bool ch__config_row(int i, const char **name, const char **fallback, const char **help);

#endif
