/* base/config.h -- the settings of the library, which environment variables set.
 *
 * Every setting is a row of a table: its name, default, help text, field and parser. The
 * environment is read once, into a struct. Only two other files read environment variables:
 * cluster/resolver.c (the cluster) and base/terminal.c (terminals).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

#define CH_MAX_THREADS 1024 /* maximum number of threads of a device */

/* How the replicas of a process run. Results are the same to the bit. */
typedef enum ch_replicas_mode {
    CH_REPLICAS_AUTO,    /* the faster way, by measurement */
    CH_REPLICAS_THREADS, /* each replica on its own thread */
    CH_REPLICAS_TURNS    /* all on the caller's thread, unless the step has host calls */
} ch_replicas_mode;

/* Each field is set by the variable COHORT_ and the field's name in capitals. */
typedef struct ch_config {
    char    devices[256];      /* such as "CPU=2,GPU=4"; "": a CPU device per core, at most 8 */
    int     threads;           /* threads of each device, up to 1024; 0: cores / devices */
    int64_t device_memory;     /* bytes of each device for variables and values; 0: no limit */
    char    tpu_mesh[256];     /* such as "2x2x1x2"; "": a default for the TPU devices */
    ch_replicas_mode replicas; /* "auto", "threads" or "turns" */
    char             simd[16]; /* "auto", "base", "avx2" or "avx512" */
    bool             fuse;     /* fuse chains of elementwise calls */
    bool             epilogue; /* fuse biases and activations into products */
    bool             engines;  /* use oneDNN where it supports the call */
    int64_t          reshard_notice; /* bytes; larger transfers are logged (spmd/print.c) */
    int              wait_notice_ms; /* a longer wait logs a warning that names its peer */
    int              wait_limit_ms;  /* a longer wait fails with DEADLINE_EXCEEDED */
    bool             check_copies;   /* compare copies of mirrored variables after each run */
    bool             interpret;      /* run node by node, unfused, checked */
    char             trace[256];     /* path of the trace to write; "": no trace */
    int              trace_limit;    /* maximum number of events in the trace */
} ch_config;

/* Returns the settings of the process and reads them on the first call. If a variable does not
 * parse, the log warns with its name, its value and the expected form, and the default is
 * used. */
const ch_config *ch__config(void);

/* Sets a setting by name, such as ("threads", "2"), for tests and command lines. Must be called
 * before the code that the setting controls runs first. Returns INVALID_ARGUMENT if the setting
 * is unknown or the value does not parse; the message gives the valid names or values. */
CH_MUST_CHECK ch_status ch__config_set(const char *name, const char *value);

/* Gives the name, the default and the help text of setting i, for --help. Returns false if i is
 * out of range. */
bool ch__config_row(int i, const char **name, const char **fallback, const char **help);

#endif
