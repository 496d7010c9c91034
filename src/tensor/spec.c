/* tensor/spec.c -- parses, prints and merges names of devices.
 *
 *     name   = [ "/" ] part { "/" part }
 *     part   = "job:" NAME | "replica:" K | "task:" K | device
 *     device = "device:" TYPE [ ":" K ] | TYPE [ ":" K ]
 *     K      = digits | "*"
 *
 * After "device:" a TYPE is any word. On its own it must be a known type, in upper or lower
 * case. A ch_device_spec is a parsed name; -1 or "" means that a part is not set. device.c and
 * the public functions of cohort/device.h call this file. The rules are those of tf.DeviceSpec.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <strings.h>

#include "base/fault.h"
#include "tensor/device.h"
#include "tensor/devices.h"
#include "tensor/print.h"

/* A piece of the text being parsed. */
typedef struct piece {
    const char *at;
    size_t      size;
} piece;

static const ch_device_spec unset = {.replica = -1, .task = -1, .index = -1};

static bool piece_is(piece p, const char *word)
{
    return p.size == strlen(word) && memcmp(p.at, word, p.size) == 0;
}

/* Returns the text before the next `mark` and removes it, with the mark, from the front of
 * `rest`. */
static piece piece_split(piece *rest, char mark)
{
    const char *end = memchr(rest->at, mark, rest->size);
    piece       p = {rest->at, end != NULL ? (size_t)(end - rest->at) : rest->size};
    size_t      skipped = end != NULL ? p.size + 1 : p.size;

    rest->at += skipped;
    rest->size -= skipped;
    return p;
}

static ch_status spec_fail(const char *text, const char *why, piece part)
{
    return ch__fail(CH_INVALID_ARGUMENT,
                    "device \"%s\": %s \"%.*s\"; want a name such as "
                    "\"/job:worker/replica:0/task:1/device:GPU:0\" or \"GPU:0\"",
                    text, why, (int)part.size, part.at);
}

static ch_status set_word(char *field, size_t room, piece word, const char *text)
{
    if (word.size == 0)
        return spec_fail(text, "empty name", word);
    if (word.size >= room)
        return spec_fail(text, "name is too long:", word);
    memcpy(field, word.at, word.size);
    field[word.size] = '\0';
    return CH_OK;
}

/* Sets a number. "*" and a missing number leave the field unset. */
static ch_status set_number(int *field, piece digits, const char *text)
{
    int n = 0;

    if (digits.size == 0 || piece_is(digits, "*"))
        return CH_OK;
    for (size_t i = 0; i < digits.size; i++) {
        char c = digits.at[i];

        if (!isdigit((unsigned char)c) || n > (INT_MAX - 9) / 10)
            return spec_fail(text, "invalid number", digits);
        n = n * 10 + (c - '0');
    }
    *field = n;
    return CH_OK;
}

static void upper(char *s)
{
    for (; *s != '\0'; s++)
        *s = (char)toupper((unsigned char)*s);
}

static bool is_known_type(piece type)
{
    static const char *const known[] = {"CPU", "GPU", "TPU", "CUSTOM", "EPU"};
    char                     word[sizeof(unset.type)];

    if (type.size == 0 || type.size >= sizeof(word))
        return false;
    memcpy(word, type.at, type.size);
    word[type.size] = '\0';
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcasecmp(word, known[i]) == 0)
            return true;
    return ch__devices_have_type(word);
}

static ch_status set_device(ch_device_spec *spec, piece type, piece index, const char *text)
{
    if (spec->type[0] != '\0')
        return spec_fail(text, "multiple device types; the second is", type);
    ch_status st = set_word(spec->type, sizeof(spec->type), type, text);
    return st == CH_OK ? set_number(&spec->index, index, text) : st;
}

static ch_status set_part(ch_device_spec *spec, piece part, const char *text)
{
    piece     value = part, key = piece_split(&value, ':');
    ch_status st;

    if (piece_is(key, "job"))
        return set_word(spec->job, sizeof(spec->job), value, text);
    if (piece_is(key, "replica"))
        return set_number(&spec->replica, value, text);
    if (piece_is(key, "task"))
        return set_number(&spec->task, value, text);
    if (piece_is(key, "device")) {
        piece type = piece_split(&value, ':');

        st = set_device(spec, type, value, text);
        if (st == CH_OK && (strcmp(spec->type, "cpu") == 0 || strcmp(spec->type, "gpu") == 0))
            upper(spec->type);
        return st;
    }
    if (!is_known_type(key))
        return spec_fail(text, "Unknown attribute", key);
    st = set_device(spec, key, value, text);
    upper(spec->type);
    return st;
}

ch_status ch_device_spec_parse(const char *text, ch_device_spec *out)
{
    ch_device_spec spec = unset;

    if (text == NULL || out == NULL)
        return ch__check_not_null("device", "the name", text, "out", out);
    for (piece rest = {text, strlen(text)}; rest.size > 0;) {
        piece part = piece_split(&rest, '/');

        if (part.size > 0) {
            ch_status st = set_part(&spec, part, text);

            if (st != CH_OK)
                return st;
        }
    }
    *out = spec;
    return CH_OK;
}

int ch_device_spec_print(const ch_device_spec *spec, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    if (spec == NULL) {
        ch__text_add(&o, "NULL");
        return ch__text_length(&o);
    }
    if (spec->job[0] != '\0')
        ch__text_add(&o, "/job:%s", spec->job);
    if (spec->replica >= 0)
        ch__text_add(&o, "/replica:%d", spec->replica);
    if (spec->task >= 0)
        ch__text_add(&o, "/task:%d", spec->task);
    if (spec->type[0] != '\0' && spec->index >= 0)
        ch__text_add(&o, "/device:%s:%d", spec->type, spec->index);
    else if (spec->type[0] != '\0')
        ch__text_add(&o, "/device:%s:*", spec->type);
    return ch__text_length(&o);
}

ch_device_spec ch_device_spec_merge(const ch_device_spec *base, const ch_device_spec *over)
{
    ch_device_spec spec = base != NULL ? *base : unset;

    if (over == NULL)
        return spec;
    if (over->job[0] != '\0')
        memcpy(spec.job, over->job, sizeof(spec.job));
    if (over->replica >= 0)
        spec.replica = over->replica;
    if (over->task >= 0)
        spec.task = over->task;
    if (over->type[0] != '\0')
        memcpy(spec.type, over->type, sizeof(spec.type));
    if (over->index >= 0)
        spec.index = over->index;
    return spec;
}

ch_status ch__device_spec_over(const ch_device_spec *base, const char *text,
                               ch_device_spec *out)
{
    ch_device_spec spec;
    ch_status      st = ch_device_spec_parse(text, &spec);

    if (st != CH_OK)
        return st;
    for (const char *c = spec.type; *c != '\0'; c++)
        if (islower((unsigned char)*c))
            return ch__fail(CH_INVALID_ARGUMENT, "device \"%s\": type \"%s\" must be all-caps",
                            text, spec.type);
    *out = ch_device_spec_merge(base, &spec);
    return CH_OK;
}

ch_status ch_device_spec_canonical(const char *text, const char *fallback, ch_device_spec *out)
{
    static const ch_device_spec host = {"localhost", 0, 0, "CPU", 0};
    ch_device_spec              base = host;
    ch_status                   rc = ch__check_not_null("device", "the name", text, "out", out);

    if (rc != CH_OK)
        return rc;
    if (fallback != NULL) {
        ch_status st = ch__device_spec_over(&host, fallback, &base);

        if (st != CH_OK)
            return st;
    }
    return ch__device_spec_over(&base, text, out);
}

ch_device_spec ch__device_spec_host(const ch_device_spec *spec)
{
    ch_device_spec host = *spec;

    memset(host.type, 0, sizeof(host.type));
    memcpy(host.type, "CPU", sizeof("CPU"));
    host.index = 0;
    return host;
}

ch_device_spec ch__device_spec_local(const ch_device_spec *spec)
{
    ch_device_spec local = *spec;

    memset(local.job, 0, sizeof(local.job));
    local.task = -1;
    return local;
}
