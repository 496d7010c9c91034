/* base/config.c -- the table of settings, and the environment variables that set them.
 *
 * `settings` has a row for each field of ch_config: its name, its default, its help text and
 * its value_kind, which parses text. ch__config() reads the environment once, on its first
 * call. Invalid and unknown variables are recorded then and logged after pthread_once has
 * returned. All parts of the library call ch__config(); tests and tools call ch__config_set().
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* environ */
#include "base/config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"

/* A type of setting. parse() writes *out, a field of `bytes` bytes, only if it returns true. */
typedef struct {
    const char *expects; /* description of valid text, for messages */
    bool (*parse)(const char *text, void *out, size_t bytes);
} value_kind;

static bool parse_text(const char *text, void *out, size_t bytes)
{
    size_t length = strlen(text);

    if (length >= bytes)
        return false;
    memcpy(out, text, length + 1);
    return true;
}

static bool parse_simd(const char *text, void *out, size_t bytes)
{
    static const char *const levels[] = {"auto", "base", "avx2", "avx512"};

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (strcmp(text, levels[i]) == 0)
            return parse_text(text, out, bytes);
    return false;
}

static bool parse_replicas(const char *text, void *out, size_t bytes)
{
    static const char *const ways[] = {
        [CH_REPLICAS_AUTO] = "auto",
        [CH_REPLICAS_THREADS] = "threads",
        [CH_REPLICAS_TURNS] = "turns",
    };

    (void)bytes;
    for (int i = 0; i < (int)(sizeof(ways) / sizeof(ways[0])); i++)
        if (strcmp(text, ways[i]) == 0) {
            *(ch_replicas_mode *)out = (ch_replicas_mode)i;
            return true;
        }
    return false;
}

static bool parse_bool(const char *text, void *out, size_t bytes)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"0", "1"}, {"off", "on"}, {"no", "yes"}};

    (void)bytes;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (int value = 0; value < 2; value++)
            if (strcasecmp(text, words[i][value]) == 0) {
                *(bool *)out = value;
                return true;
            }
    return false;
}

static bool parse_int(const char *text, int least, int *out)
{
    char *end;
    long  value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > INT_MAX)
        return false;
    *out = (int)value;
    return true;
}

static bool parse_threads(const char *text, void *out, size_t bytes)
{
    int value;

    (void)bytes;
    if (!parse_int(text, 0, &value) || value > CH_MAX_THREADS)
        return false;
    *(int *)out = value;
    return true;
}

static bool parse_count(const char *text, void *out, size_t bytes)
{
    (void)bytes;
    return parse_int(text, 1, out);
}

static bool parse_ms(const char *text, void *out, size_t bytes)
{
    (void)bytes;
    return parse_int(text, 1, out);
}

/* Parses a number of bytes, such as 1500000, 512K, 100M or 2G. */
static bool parse_bytes(const char *text, void *out, size_t bytes)
{
    static const char suffix[] = "KMG";
    char             *end;
    long long         value;
    const char       *s;

    (void)bytes;
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || errno != 0 || value < 0)
        return false;
    s = *end != '\0' ? strchr(suffix, toupper((unsigned char)*end)) : NULL;
    if (*end != '\0' && (s == NULL || end[1] != '\0' || value > LLONG_MAX >> 30))
        return false;
    *(int64_t *)out = s != NULL ? value << (10 * (s - suffix + 1)) : value;
    return true;
}

static const value_kind kind_text = {"a text of at most 255 characters", parse_text};
static const value_kind kind_simd = {"auto, base, avx2 or avx512", parse_simd};
static const value_kind kind_replicas = {"auto, threads or turns", parse_replicas};
static const value_kind kind_bool = {"true or false", parse_bool};
static const value_kind kind_threads = {"a whole number, 0 to 1024", parse_threads};
static const value_kind kind_bytes = {"a number of bytes, such as 1500000, 512K, 100M or 2G",
                                      parse_bytes};
static const value_kind kind_count = {"a whole number, 1 or more", parse_count};
static const value_kind kind_ms = {"milliseconds, a whole number, 1 or more", parse_ms};

typedef struct {
    const char       *name, *fallback, *help; /* fallback: the default, as text */
    size_t            offset, bytes;          /* of the field in ch_config */
    const value_kind *kind;
} setting;

/* clang-format off */
#define SETTING(field, kind, fallback, help)                                             \
    {#field, fallback, help, offsetof(ch_config, field), sizeof(((ch_config *)0)->field), \
     &kind_##kind}
static const setting settings[] = {
    SETTING(devices,        text,  "",       "such as CPU=2,GPU=4; empty: one CPU device for each core, at most 8"),
    SETTING(threads,        threads, "0",    "threads in each device; 0: cores / devices"),
    SETTING(device_memory,  bytes, "0",      "memory of each device for variables and the values of a step; a step that needs more fails before it runs; 0: no limit"),
    SETTING(tpu_mesh,       text,  "",       "mesh of the TPU devices of this process, such as 2x2x1x2: sizes in x, y and z, and cores of a chip; empty: chips of two cores, as square as possible"),
    SETTING(replicas,       replicas, "auto", "run the replicas of this process in parallel, each on its own thread, or in turns on the caller's thread; auto: the faster way, which is measured from time to time"),
    SETTING(simd,           simd,  "auto",   "vector instructions of the kernels: auto takes the highest level of the CPU, base those that every CPU of the architecture has; a level that the CPU does not have means auto"),
    SETTING(fuse,           bool,  "true",   "true: a chain of elementwise ops is computed in one pass over memory; false: each op in a pass of its own, slower and with the same results"),
    SETTING(epilogue,       bool,  "true",   "fuse biases and activations into the product or convolution before them"),
    SETTING(engines,        bool,  "true",   "use oneDNN where it fits"),
    SETTING(reshard_notice, bytes, "1M",     "a transfer of more bytes between the logical devices of a replica, which no annotation asks for, is logged with its line when the step is planned"),
    SETTING(wait_notice_ms, ms,    "10000",  "a wait for input or for another replica that lasts longer logs a warning that names its peer"),
    SETTING(wait_limit_ms,  ms,    "600000", "a wait for another replica, worker or server that lasts longer fails with DEADLINE_EXCEEDED and names what it waited for; options with a time limit of their own override it"),
    SETTING(check_copies,   bool,  "false",  "after each run compare all copies of mirrored variables, bit for bit, except variables with a copies-differ warning in the log"),
    SETTING(interpret,      bool,  "false",  "run node by node: nothing fused, folded or planned together"),
    SETTING(trace,          text,  "",       "write a trace of all calls to this file, for chrome://tracing or Perfetto; empty: no trace"),
    SETTING(trace_limit,    count, "250000", "maximum number of events in a trace, of about 100 bytes each; later events are counted and dropped"),
};
/* clang-format on */
#undef SETTING

enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]), VARIABLE_NAME = 64 };

static ch_config      config;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool    has_unknown; /* a COHORT_ variable names no setting; not logged yet */
static atomic_uint    rejected; /* bit i: the variable of row i did not parse; not logged yet */
_Static_assert(N_SETTINGS <= sizeof(unsigned) * CHAR_BIT, "a bit of `rejected` a row");

static bool setting_parse(const setting *s, const char *text)
{
    return s->kind->parse(text, (char *)&config + s->offset, s->bytes);
}

/* Writes the name of the setting's environment variable to `name`. Returns the variable's
 * value, or NULL if the variable is unset or empty. */
static const char *setting_variable(const setting *s, char name[VARIABLE_NAME])
{
    const char *value;
    int         n = snprintf(name, VARIABLE_NAME, "COHORT_%s", s->name);

    for (int i = 0; i < n; i++)
        name[i] = (char)toupper((unsigned char)name[i]);
    value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Returns true if "COHORT_X=..." sets a setting, or is a variable that cluster/resolver.c
 * reads. */
static bool is_setting(const char *entry)
{
    static const char *const elsewhere[] = {"COHORT_CLUSTER", "COHORT_TASK"};
    size_t                   length = strcspn(entry, "=");

    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
        if (strlen(elsewhere[i]) == length && strncmp(elsewhere[i], entry, length) == 0)
            return true;
    for (unsigned i = 0; i < N_SETTINGS; i++) {
        char name[VARIABLE_NAME];

        (void)setting_variable(&settings[i], name);
        if (strlen(name) == length && strncmp(name, entry, length) == 0)
            return true;
    }
    return false;
}

static bool is_unknown(const char *entry)
{
    return strncmp(entry, "COHORT_", 7) == 0 && !is_setting(entry);
}

static void read_environment(void)
{
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (is_unknown(*e))
            atomic_store(&has_unknown, true);
    for (unsigned i = 0; i < N_SETTINGS; i++) {
        char        name[VARIABLE_NAME];
        const char *value = setting_variable(&settings[i], name);
        bool        is_parsed = setting_parse(&settings[i], settings[i].fallback);

        assert(is_parsed);
        (void)is_parsed;
        if (value != NULL && !setting_parse(&settings[i], value))
            atomic_fetch_or(&rejected, 1u << i);
    }
}

/* Must be called outside pthread_once, because the log sink may call the library, and so
 * ch__config() again. The same holds for log_unknown. */
static void log_rejected(void)
{
    unsigned rows = atomic_exchange(&rejected, 0);

    for (unsigned i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        char           name[VARIABLE_NAME];
        const char    *value;

        if ((rows >> i & 1) == 0)
            continue;
        value = setting_variable(s, name);
        ch__log(CH_LOG_WARNING, "config", "%s=\"%s\" is not %s; using the default \"%s\"", name,
                value != NULL ? value : "", s->kind->expects, s->fallback);
    }
}

static void log_unknown(void)
{
    atomic_store(&has_unknown, false);
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (is_unknown(*e))
            ch__log(CH_LOG_WARNING, "config", "%.*s: unknown setting, ignored",
                    (int)strcspn(*e, "="), *e);
}

const ch_config *ch__config(void)
{
    pthread_once(&once, read_environment);
    if (atomic_load_explicit(&has_unknown, memory_order_relaxed))
        log_unknown();
    if (atomic_load_explicit(&rejected, memory_order_relaxed) != 0)
        log_rejected();
    return &config;
}

static const setting *setting_find(const char *name)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

static ch_status fail_unknown(const char *name)
{
    char known[512] = "";

    for (size_t i = 0, at = 0; i < N_SETTINGS && at < sizeof(known); i++)
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i > 0 ? ", " : "",
                               settings[i].name);
    return ch__fail(CH_INVALID_ARGUMENT, "unknown setting \"%s\"; the settings are %s", name,
                    known);
}

ch_status ch__config_set(const char *name, const char *value)
{
    const setting *s = setting_find(name);

    (void)
        ch__config(); /* reads the environment first, so that it does not overwrite the value */
    if (s == NULL)
        return fail_unknown(name);
    if (!setting_parse(s, value))
        return ch__fail(CH_INVALID_ARGUMENT, "setting %s: \"%s\" is not %s", name, value,
                        s->kind->expects);
    return CH_OK;
}

bool ch__config_row(int i, const char **name, const char **fallback, const char **help)
{
    if (i < 0 || i >= N_SETTINGS)
        return false;
    *name = settings[i].name;
    *fallback = settings[i].fallback;
    *help = settings[i].help;
    return true;
}
