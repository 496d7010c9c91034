/* base/config.c -- the table of settings, and the environment read into it.
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

/* A kind of value. parse writes *place only when it returns true. */
typedef struct {
    const char *expects;
    bool (*parse)(const char *text, void *place, size_t bytes);
} value_kind;

static bool parse_text(const char *text, void *place, size_t bytes)
{
    size_t length = strlen(text);

    if (length >= bytes)
        return false;
    memcpy(place, text, length + 1);
    return true;
}

static bool parse_simd(const char *text, void *place, size_t bytes)
{
    static const char *const levels[] = {"auto", "base", "avx2", "avx512"};

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
        if (strcmp(text, levels[i]) == 0)
            return parse_text(text, place, bytes);
    return false;
}

static bool parse_replicas(const char *text, void *place, size_t bytes)
{
    static const char *const ways[] = {
        [CH_REPLICAS_AUTO] = "auto",
        [CH_REPLICAS_THREADS] = "threads",
        [CH_REPLICAS_TURNS] = "turns",
    };

    (void)bytes;
    for (int i = 0; i < (int)(sizeof(ways) / sizeof(ways[0])); i++)
        if (strcmp(text, ways[i]) == 0) {
            *(ch_replicas_way *)place = (ch_replicas_way)i;
            return true;
        }
    return false;
}

static bool parse_bool(const char *text, void *place, size_t bytes)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"0", "1"}, {"off", "on"}, {"no", "yes"}};

    (void)bytes;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (int value = 0; value < 2; value++)
            if (strcasecmp(text, words[i][value]) == 0) {
                *(bool *)place = value;
                return true;
            }
    return false;
}

static bool parse_int(const char *text, int least, int *place)
{
    char *end;
    long  value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > INT_MAX)
        return false;
    *place = (int)value;
    return true;
}

static bool parse_threads(const char *text, void *place, size_t bytes)
{
    int value;

    (void)bytes;
    if (!parse_int(text, 0, &value) || value > CH_MAX_THREADS)
        return false;
    *(int *)place = value;
    return true;
}

static bool parse_count(const char *text, void *place, size_t bytes)
{
    (void)bytes;
    return parse_int(text, 1, place);
}

static bool parse_ms(const char *text, void *place, size_t bytes)
{
    (void)bytes;
    return parse_int(text, 1, place);
}

static const value_kind kind_text = {"a text of at most 255 characters", parse_text};
static const value_kind kind_simd = {"auto, base, avx2 or avx512", parse_simd};
static const value_kind kind_replicas = {"auto, threads or turns", parse_replicas};
static const value_kind kind_bool = {"true or false", parse_bool};
static const value_kind kind_threads = {"a whole number, 0 to 1024", parse_threads};
static const value_kind kind_count = {"a whole number, 1 or more", parse_count};
static const value_kind kind_ms = {"milliseconds, a whole number, 1 or more", parse_ms};

typedef struct {
    const char       *name, *fallback, *help;
    size_t            offset, bytes;
    const value_kind *kind;
} setting;

/* clang-format off */
#define SETTING(field, kind, fallback, help)                                             \
    {#field, fallback, help, offsetof(ch_config, field), sizeof(((ch_config *)0)->field), \
     &kind_##kind}
static const setting settings[] = {
    SETTING(devices,        text,  "",       "such as CPU=2,GPU=4; empty: one CPU for each core, at most 8"),
    SETTING(threads,        threads, "0",    "threads in each device; 0: cores / devices"),
    SETTING(replicas,       replicas, "auto", "run the replicas of this process on threads of their own, or in turns on the caller's thread; auto: as is faster, measured now and then"),
    SETTING(simd,           simd,  "auto",   "vector instructions: auto, base, avx2, avx512"),
    SETTING(fuse,           bool,  "true",   "fuse elementwise chains"),
    SETTING(epilogue,       bool,  "true",   "fuse biases and activations into the product or convolution before them"),
    SETTING(engines,        bool,  "true",   "use oneDNN where it fits"),
    SETTING(wait_notice_ms, ms,    "10000",  "a wait, for input or another replica, says whom it waits for after this"),
    SETTING(wait_limit_ms,  ms,    "600000", "a wait for another replica is an error after this"),
    SETTING(check_copies,   bool,  "false",  "after each run compare all copies of mirrored variables, bit for bit, but of those that the log warned of (copies-differ)"),
    SETTING(interpret,      bool,  "false",  "run node by node: nothing fused, folded or planned together"),
    SETTING(trace,          text,  "",       "a file that shows who did what when, for chrome://tracing or Perfetto; empty: none"),
    SETTING(trace_limit,    count, "250000", "events in a trace, of about 100 bytes each; those after them are left out and counted"),
};
/* clang-format on */
#undef SETTING

enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]), VARIABLE_NAME = 64 };

static ch_config      config;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool    has_strangers; /* COHORT_ variables that set nothing; not yet told */
static atomic_uint    refused; /* bit i: the variable of row i did not parse; not yet told */
_Static_assert(N_SETTINGS <= sizeof(unsigned) * CHAR_BIT, "a bit of `refused` a row");

static bool setting_parse(const setting *s, const char *text)
{
    return s->kind->parse(text, (char *)&config + s->offset, s->bytes);
}

/* The variable that sets it, and its value: NULL if unset. Empty is unset, as usual. */
static const char *setting_variable(const setting *s, char name[VARIABLE_NAME])
{
    const char *value;
    int         n = snprintf(name, VARIABLE_NAME, "COHORT_%s", s->name);

    for (int i = 0; i < n; i++)
        name[i] = (char)toupper((unsigned char)name[i]);
    value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Whether "COHORT_X=..." names a setting, or what cluster/resolver.c reads. */
static bool is_known(const char *entry)
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

static bool is_stranger(const char *entry)
{
    return strncmp(entry, "COHORT_", 7) == 0 && !is_known(entry);
}

static void read_environment(void)
{
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (is_stranger(*e))
            atomic_store(&has_strangers, true);
    for (unsigned i = 0; i < N_SETTINGS; i++) {
        char        name[VARIABLE_NAME];
        const char *value = setting_variable(&settings[i], name);
        bool        is_sound = setting_parse(&settings[i], settings[i].fallback);

        assert(is_sound);
        (void)is_sound;
        if (value != NULL && !setting_parse(&settings[i], value))
            atomic_fetch_or(&refused, 1u << i);
    }
}

/* Told outside of pthread_once: the sink may call the library, and that lands here again. */
static void tell_refused(void)
{
    unsigned rows = atomic_exchange(&refused, 0);

    for (unsigned i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        char           name[VARIABLE_NAME];
        const char    *value;

        if ((rows >> i & 1) == 0)
            continue;
        value = setting_variable(s, name);
        ch__log(CH_LOG_WARNING, "config", "%s=\"%s\" is not %s; taking \"%s\"", name,
                value != NULL ? value : "", s->kind->expects, s->fallback);
    }
}

static void tell_strangers(void)
{
    atomic_store(&has_strangers, false);
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (is_stranger(*e))
            ch__log(CH_LOG_WARNING, "config", "%.*s sets nothing: there is no such setting",
                    (int)strcspn(*e, "="), *e);
}

const ch_config *ch__config(void)
{
    pthread_once(&once, read_environment);
    if (atomic_load_explicit(&has_strangers, memory_order_relaxed))
        tell_strangers();
    if (atomic_load_explicit(&refused, memory_order_relaxed) != 0)
        tell_refused();
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
    return ch__fail(CH_INVALID_ARGUMENT, "no setting \"%s\"; there are %s", name, known);
}

ch_status ch__config_set(const char *name, const char *value)
{
    const setting *s = setting_find(name);

    (void)ch__config(); /* or the environment would be read over it later */
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
