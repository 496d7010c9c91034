/* fit/progress_text.c -- how far a training is, as text.   SPDX-License-Identifier:
 * Apache-2.0 */
#include "fit/progress_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fit/number.h"

/* ---- numbers ---- */

ch_short ch__short_number(double x)
{
    ch_short s;
    bool     is_plain = x == 0 || (fabs(x) >= 1e-3 && fabs(x) < 1e5) || !isfinite(x);

    if (isnan(x))
        x = (double)NAN; /* without a sign */
    snprintf(s.text, sizeof(s.text), is_plain ? "%.4f" : "%.4e", x);
    return s;
}

ch_short ch__short_time(double seconds)
{
    ch_short s;
    int64_t  n = llrint(fmin(fmax(seconds, 0), 1e12));

    if (n < 60)
        snprintf(s.text, sizeof(s.text), "%" PRId64 "s", n);
    else if (n < 3600)
        snprintf(s.text, sizeof(s.text), "%" PRId64 ":%02" PRId64, n / 60, n % 60);
    else
        snprintf(s.text, sizeof(s.text), "%" PRId64 ":%02" PRId64 ":%02" PRId64, n / 3600,
                 n / 60 % 60, n % 60);
    return s;
}

ch_short ch__short_elapsed(double seconds)
{
    ch_short s = ch__short_time(seconds);

    if (seconds < 9.95)
        snprintf(s.text, sizeof(s.text), "%.1fs", fmax(seconds, 0));
    return s;
}

/* Two digits at least, and no decimals where there are three. */
ch_short ch__short_step(double seconds)
{
    const char *unit = seconds >= 0.9995 ? "s" : seconds >= 0.9995e-3 ? "ms" : "us";
    double      x = seconds * (unit[0] == 's' ? 1 : unit[0] == 'm' ? 1e3 : 1e6);
    ch_short    s;

    snprintf(s.text, sizeof(s.text), x < 9.95 ? "%.1f%s/step" : "%.0f%s/step", fmin(x, 1e12),
             unit);
    return s;
}

ch_short ch__short_rate(double x)
{
    static const char *const unit[] = {"", "k", "M", "G"};
    ch_short                 s;
    int                      i = 0;

    for (; i < 3 && x >= 999.5; i++)
        x /= 1000;
    snprintf(s.text, sizeof(s.text),
             x < 9.995   ? "%.2f%s"
             : x < 99.95 ? "%.1f%s"
                         : "%.0f%s",
             fmin(x, 1e12), unit[i]);
    return s;
}

/* ---- names ---- */

enum { NAME_BYTES = 96, NAME_COLUMNS = 32 };

/* The bytes of a character of UTF-8, and 0 if it is none: a name may be anything. */
static int character_bytes(const char *s)
{
    unsigned char c = (unsigned char)*s;
    int           n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;

    for (int i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    return c < 0xf5 ? n : 0;
}

/* A name that cannot harm a terminal: control characters and what is not UTF-8 are "?". Returns
 * its columns; those of three bytes and more may take two, and are counted so: a line that is
 * too short does no harm. */
static int clean_name(const char *name, bool is_utf8, char out[NAME_BYTES])
{
    int n = 0, columns = 0;

    while (*name != '\0' && columns < NAME_COLUMNS && n + 5 < NAME_BYTES) {
        int bytes = character_bytes(name);

        if (bytes > 0 && is_utf8) {
            memcpy(out + n, name, (size_t)bytes);
            n += bytes;
            columns += bytes >= 3 ? 2 : 1;
        } else {
            out[n++] = *name >= 0x20 && *name < 0x7f ? *name : '?';
            columns++;
        }
        name += bytes > 0 ? bytes : 1;
    }
    out[n] = '\0';
    return columns;
}

bool ch__is_of_validation(const char *name)
{
    return strncmp(name, "val_", 4) == 0;
}

int ch__progress_reserve(const ch_logs *l, bool is_utf8, bool with_validation)
{
    char name[NAME_BYTES];
    int  columns = 0;

    for (int i = 0; i < l->n; i++)
        if (with_validation || !ch__is_of_validation(l->at[i].name))
            columns += 3 + clean_name(l->at[i].name, is_utf8, name) + 2 + 6;
    return columns;
}

/* ---- a line of a terminal ---- */

enum { BAR_MOST = 30, TIME_COLUMNS = 8, STEP_COLUMNS = 10 };

/* A line in the making: text is added if all of it fits. */
typedef struct {
    ch_text                 *o;
    const ch_progress_style *look;
    int                      columns;  /* so far */
    bool                     is_tight; /* no dashes before numbers */
} line;

static bool has_room(const line *l, int columns)
{
    return l->columns + columns < l->look->columns;
}

static void add(line *l, const char *color, int columns, const char *text)
{
    if (!has_room(l, columns))
        return;
    if (l->look->has_color && color != NULL)
        ch__text_add(l->o, "\033[%sm%s\033[0m", color, text);
    else
        ch__text_add(l->o, "%s", text);
    l->columns += columns;
}

static void add_many(line *l, const char *color, int n, const char *text)
{
    char many[BAR_MOST * 4 + 1] = "";

    for (int i = 0; i < n && i < BAR_MOST; i++)
        memcpy(many + (size_t)i * strlen(text), text, strlen(text) + 1);
    if (n > 0)
        add(l, color, n, many);
}

#define GREEN "32"
#define GREY  "90"
#define BOLD  "1"

/* Half characters make it move twice as smoothly. */
static void add_bar(line *l, int width, double part)
{
    int halves = (int)(part * width * 2), full = halves / 2, half = halves % 2;

    if (!l->look->is_utf8) {
        full = (int)(part * (width - 2));
        half = full < width - 2;
        add(l, NULL, 1, "[");
        add_many(l, GREEN, full, "=");
        add_many(l, GREEN, half, ">");
        add_many(l, GREY, width - 2 - full - half, ".");
        add(l, NULL, 1, "]");
        return;
    }
    add_many(l, GREEN, full, "\u2501");
    add_many(l, GREEN, half, "\u2578");
    add_many(l, GREY, width - full - half, l->look->has_color ? "\u2501" : "\u2500");
}

/* Nobody knows how long it takes: a piece goes to and fro. */
static void add_pulse(line *l, int width, int beat)
{
    bool        is_utf8 = l->look->is_utf8;
    int         inner = is_utf8 ? width : width - 2;
    int         piece = inner / 4 + 1, way = inner - piece;
    int         at = way > 0 ? beat % (2 * way) : 0;
    const char *rest = !is_utf8 ? "." : l->look->has_color ? "\u2501" : "\u2500";

    at = at > way ? 2 * way - at : at;
    if (!is_utf8)
        add(l, NULL, 1, "[");
    add_many(l, GREY, at, rest);
    add_many(l, GREEN, piece, is_utf8 ? "\u2501" : "=");
    add_many(l, GREY, way - at, rest);
    if (!is_utf8)
        add(l, NULL, 1, "]");
}

/* How examples a second are shown, and how wide the bar is: both follow from the names alone,
 * not from the numbers, so that nothing jumps. */
typedef struct {
    int  bar;      /* 0: none */
    int  rate;     /* 2: "20.1k ex/s", 1: "20.1k/s", 0: not at all */
    bool is_tight; /* blanks between the numbers, no dashes */
} layout;

enum { DASHES = 2 }; /* columns that a number needs less where it is tight */

/* The fullest that fits beside so many numbers, which take so many columns; false: none does.
 * The bar is the first to go: it says nothing that the steps do not say. */
static bool lay_out(const line *l, int n, int numbers, bool may_be_tight, layout *how)
{
    static const layout all[] = {{12, 2, false}, {6, 1, false}, {4, 1, true}, {0, 1, true}};
    static const int    rate_columns[] = {0, 8, 11};
    int room = l->look->columns - 1 - l->columns - 2 - TIME_COLUMNS - STEP_COLUMNS - numbers;

    for (int i = 0; i < (may_be_tight ? 4 : 2); i++) {
        int bar = room - rate_columns[all[i].rate] + (all[i].is_tight ? DASHES * n : 0);

        if (bar < all[i].bar)
            continue;
        *how = all[i];
        if (how->bar > 0)
            how->bar = bar < BAR_MOST ? bar : BAR_MOST;
        return true;
    }
    return false;
}

static int count_trained(const ch_logs *logs)
{
    int n = 0;

    for (int i = 0; i < logs->n; i++)
        n += !ch__is_of_validation(logs->at[i].name);
    return n;
}

/* Numbers of a validation that are not beside the others are below them, and need no place. Of
 * a window that is narrower still the first number, which is the loss, has a place, and the
 * others have what is left. */
static layout choose_layout(const line *l, const ch_logs *logs)
{
    static char                loss[] = "loss", accuracy[] = "accuracy";
    static struct ch_log_entry usual_names[] = {{loss, 0}, {accuracy, 0}};
    static const ch_logs       usual = {2, 2, usual_names};
    const ch_progress_style   *look = l->look;
    const ch_logs             *likely = logs->n > 0 ? logs : look->likely;
    ch_logs                    one;
    layout                     how = {0};

    likely = likely != NULL && likely->n > 0 ? likely : &usual;
    one = (ch_logs){1, 1, likely->at};
    if (!lay_out(l, likely->n, ch__progress_reserve(likely, look->is_utf8, true), false,
                 &how) &&
        !lay_out(l, count_trained(likely), ch__progress_reserve(likely, look->is_utf8, false),
                 true, &how))
        (void)lay_out(l, 1, ch__progress_reserve(&one, look->is_utf8, true), true, &how);
    return how;
}

static void add_head(line *l, const ch_pace *p)
{
    char text[64];
    int  n, digits = snprintf(NULL, 0, "%" PRId64, p->steps);

    if (p->steps >= 0)
        n = snprintf(text, sizeof(text), " %*" PRId64 "/%" PRId64, digits, p->step, p->steps);
    else
        n = snprintf(text, sizeof(text), " %" PRId64, p->step);
    add(l, BOLD, n, text);
}

static double seconds_left(const ch_pace *p)
{
    return p->per_step * (double)(p->steps > p->step ? p->steps - p->step : 0);
}

static bool has_end(const ch_pace *p)
{
    return !p->is_done && !p->is_validating && p->steps >= 0 && p->per_step > 0;
}

/* What is left, if that is known; else what has passed. */
static const char *time_of(const ch_pace *p, char when[40])
{
    if (has_end(p))
        snprintf(when, 40, "ETA %s", ch__short_time(seconds_left(p)).text);
    else if (p->is_done)
        snprintf(when, 40, "%s", ch__short_elapsed(p->seconds).text);
    else
        snprintf(when, 40, "%s", ch__short_time(p->seconds).text);
    return when;
}

static void add_times(line *l, const ch_pace *p, int rate)
{
    char text[64], when[40];
    int  n;

    n = snprintf(text, sizeof(text), " %s", time_of(p, when));
    add(l, NULL, n, text);
    if (p->per_step > 0) {
        n = snprintf(text, sizeof(text), " %s", ch__short_step(p->per_step).text);
        add(l, NULL, n, text);
    }
    if (p->per_second > 0 && rate > 0) {
        n = snprintf(text, sizeof(text), " %s%s/s", ch__short_rate(p->per_second).text,
                     rate == 2 ? " ex" : "");
        add(l, NULL, n, text);
    }
}

static void add_validation(line *l, const ch_pace *p)
{
    char text[80];
    int  n;

    if (p->validation_steps > 0)
        n = snprintf(text, sizeof(text), " - validating %" PRId64 "/%" PRId64,
                     p->validation_step, p->validation_steps);
    else
        n = snprintf(text, sizeof(text), " - validating %" PRId64, p->validation_step);
    add(l, NULL, n, text);
}

/* The columns of a number with its name, as text that follows another. */
static int number_text(const line *l, const struct ch_log_entry *e, char text[NAME_BYTES + 40])
{
    char     name[NAME_BYTES];
    ch_short value = ch__short_number(e->value);
    int      n = clean_name(e->name, l->look->is_utf8, name);

    snprintf(text, NAME_BYTES + 40, "%s%s: %s", l->is_tight ? " " : " - ", name, value.text);
    return n + (l->is_tight ? 1 : 3) + 2 + (int)strlen(value.text);
}

static bool all_fit(const line *l, const ch_logs *logs)
{
    char text[NAME_BYTES + 40];
    int  columns = 0;

    for (int i = 0; i < logs->n; i++)
        columns += number_text(l, &logs->at[i], text);
    return has_room(l, columns);
}

/* Of a line that will be drawn again: what fits. */
static void add_numbers(line *l, const ch_logs *logs)
{
    char text[NAME_BYTES + 40];

    for (int i = 0; i < logs->n; i++) {
        int columns = number_text(l, &logs->at[i], text);

        if (!has_room(l, columns))
            return;
        add(l, NULL, columns, text);
    }
}

/* Of one that stays: all, on as many lines as it takes. Those of the validation begin one. */
static void add_all_numbers(line *l, const ch_logs *logs)
{
    char text[NAME_BYTES + 40];
    bool fits = all_fit(l, logs), is_val = false;

    for (int i = 0; i < logs->n; i++) {
        int  columns = number_text(l, &logs->at[i], text);
        bool begins_val = !fits && !is_val && ch__is_of_validation(logs->at[i].name);

        if (begins_val || !has_room(l, columns)) {
            ch__text_add(l->o, "\n");
            l->columns = 0;
            l->is_tight = false;
            columns = number_text(l, &logs->at[i], text);
            text[1] = ' '; /* no dash before the first */
        }
        is_val = is_val || begins_val;
        add(l, NULL, columns, text);
    }
}

int ch__progress_live(ch_text *o, const ch_pace *p, const ch_logs *logs,
                      const ch_progress_style *look)
{
    line   l = {.o = o, .look = look};
    layout how;

    add_head(&l, p);
    how = choose_layout(&l, logs);
    l.is_tight = how.is_tight;
    if (how.bar > 0 && has_room(&l, 1 + how.bar)) {
        add(&l, NULL, 1, " ");
        if (p->steps > 0)
            add_bar(&l, how.bar, fmin((double)p->step / (double)p->steps, 1));
        else if (p->is_done)
            add_bar(&l, how.bar, 1);
        else
            add_pulse(&l, how.bar, p->beat);
    }
    add_times(&l, p, how.rate);
    if (p->is_validating)
        add_validation(&l, p);
    if (p->is_done)
        add_all_numbers(&l, logs);
    else
        add_numbers(&l, logs);
    return l.columns;
}

/* ---- a line of a file ---- */

void ch__progress_plain(ch_text *o, const ch_pace *p, const ch_logs *l)
{
    char name[NAME_BYTES], when[40];

    ch__text_add(o, "%s - %" PRId64, p->what, p->step);
    if (p->steps >= 0)
        ch__text_add(o, "/%" PRId64, p->steps);
    ch__text_add(o, " - %s", time_of(p, when));
    if (p->per_step > 0)
        ch__text_add(o, " - %s", ch__short_step(p->per_step).text);
    if (p->per_second > 0)
        ch__text_add(o, " - %s ex/s", ch__short_rate(p->per_second).text);
    for (int i = 0; i < l->n; i++) {
        (void)clean_name(l->at[i].name, true, name);
        ch__text_add(o, " - %s: %s", name, ch__short_number(l->at[i].value).text);
    }
    ch__text_add(o, "\n");
}

/* ---- an object ---- */

/* What is no UTF-8 is no JSON either: "?". */
static void add_string(ch_text *o, const char *s)
{
    ch__text_add(o, "\"");
    while (*s != '\0') {
        int n = character_bytes(s);

        if (n > 0)
            ch__text_add(o, "%.*s", n, s);
        else if (*s == '"' || *s == '\\')
            ch__text_add(o, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            ch__text_add(o, "\\u%04x", (unsigned)*s);
        else
            ch__text_add(o, "%c", (unsigned char)*s < 0x80 ? *s : '?');
        s += n > 0 ? n : 1;
    }
    ch__text_add(o, "\"");
}

static void add_count(ch_text *o, const char *name, int64_t n)
{
    if (n >= 0)
        ch__text_add(o, ", \"%s\": %" PRId64, name, n);
    else
        ch__text_add(o, ", \"%s\": null", name);
}

void ch__progress_object(ch_text *o, const ch_moment *at, const ch_pace *p, const ch_logs *l)
{
    ch__text_add(o, "{\"event\": \"%s\"", at->event);
    add_count(o, "epoch", at->epoch);
    add_count(o, "epochs", at->epochs);
    add_count(o, "step", p->step);
    add_count(o, "steps", p->steps);
    ch__text_add(o, ", \"seconds\": %s, \"examples_per_second\": %s",
                 ch__rounded_text(at->seconds, 1e3).text,
                 p->per_second > 0 ? ch__rounded_text(p->per_second, 1e1).text : "null");
    if (at->why != NULL) {
        ch__text_add(o, ", \"stopped\": ");
        add_string(o, at->why);
    }
    ch__text_add(o, ", \"logs\": {");
    for (int i = 0; i < l->n; i++) {
        ch__text_add(o, i > 0 ? ", " : "");
        add_string(o, l->at[i].name);
        ch__text_add(o, ": %s", ch__number_text(l->at[i].value, true).text);
    }
    ch__text_add(o, "}}\n");
}
