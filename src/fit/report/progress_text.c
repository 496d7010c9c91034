/* fit/report/progress_text.c -- progress as text.
 *
 * Renders a ch_progress_record as a live line for a terminal, a line for a file, or a JSON
 * object. progress.c is the caller. Nothing here allocates: all functions append to a ch_text.
 * Invariants of the live line:
 *
 *   1. A piece of text is added only if it fits as a whole, and the last column stays free.
 *   2. The layout depends on the names of the logs and not on their values, so that the parts
 *      of the line do not move.
 *   3. Names of logs are untrusted: bytes that could control the terminal are replaced.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/report/progress_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fit/report/json.h"
#include "fit/report/number.h"

/* ---- numbers ---- */

ch_short ch__short_number(double x)
{
    ch_short s;
    bool     is_plain = x == 0 || (fabs(x) >= 1e-3 && fabs(x) < 1e5) || !isfinite(x);

    if (isnan(x))
        x = (double)NAN; /* drops the sign of the NaN */
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

/* Prints two significant digits at least: a decimal below 10, none above. */
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

/* Copies a name without bytes that could control the terminal: control characters and invalid
 * UTF-8 become "?". Long names are cut. Returns the number of columns. Characters of three or
 * more bytes are counted as two columns, because they may be wide; if they are not, the line is
 * only shorter. */
static int clean_name(const char *name, bool is_utf8, char out[NAME_BYTES])
{
    int n = 0, columns = 0;

    while (*name != '\0' && columns < NAME_COLUMNS && n + 5 < NAME_BYTES) {
        int bytes = ch__utf8_bytes(name);

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

int ch__progress_reserve(const ch_logs *l, bool is_utf8, bool with_validation)
{
    char name[NAME_BYTES];
    int  columns = 0;

    for (int i = 0; i < l->n; i++)
        if (with_validation || !ch__is_of_validation(l->at[i].name))
            columns += 3 + clean_name(l->at[i].name, is_utf8, name) + 2 + 6;
    return columns;
}

/* ---- live line ---- */

enum { BAR_MAX = 30, TIME_COLUMNS = 8, STEP_COLUMNS = 10 };

/* A line under construction. */
typedef struct {
    ch_text                 *o;
    const ch_progress_style *style;
    int                      columns;  /* columns used so far */
    bool                     is_tight; /* logs are separated by spaces only */
} line;

static bool has_room(const line *l, int columns)
{
    return l->columns + columns < l->style->columns;
}

/* Adds a text of `columns` columns if it fits. `color` is the parameter of an SGR escape
 * sequence; NULL: default. */
static void add(line *l, const char *color, int columns, const char *text)
{
    if (!has_room(l, columns))
        return;
    if (l->style->has_color && color != NULL)
        ch__text_add(l->o, "\033[%sm%s\033[0m", color, text);
    else
        ch__text_add(l->o, "%s", text);
    l->columns += columns;
}

static void add_many(line *l, const char *color, int n, const char *text)
{
    char many[BAR_MAX * 4 + 1] = "";

    for (int i = 0; i < n && i < BAR_MAX; i++)
        memcpy(many + (size_t)i * strlen(text), text, strlen(text) + 1);
    if (n > 0)
        add(l, color, n, many);
}

#define GREEN "32"
#define GREY  "90"
#define BOLD  "1"

/* Draws a bar of `width` columns that is filled to `part` (0 to 1). With UTF-8 it moves in half
 * columns. */
static void add_bar(line *l, int width, double part)
{
    int halves = (int)(part * width * 2), full = halves / 2, half = halves % 2;

    if (!l->style->is_utf8) {
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
    add_many(l, GREY, width - full - half, l->style->has_color ? "\u2501" : "\u2500");
}

/* Draws a bar in which a piece moves to and fro, because the number of steps is not known. */
static void add_moving_bar(line *l, int width, int frame)
{
    bool        is_utf8 = l->style->is_utf8;
    int         inner = is_utf8 ? width : width - 2;
    int         piece = inner / 4 + 1, way = inner - piece;
    int         at = way > 0 ? frame % (2 * way) : 0;
    const char *rest = !is_utf8 ? "." : l->style->has_color ? "\u2501" : "\u2500";

    at = at > way ? 2 * way - at : at;
    if (!is_utf8)
        add(l, NULL, 1, "[");
    add_many(l, GREY, at, rest);
    add_many(l, GREEN, piece, is_utf8 ? "\u2501" : "=");
    add_many(l, GREY, way - at, rest);
    if (!is_utf8)
        add(l, NULL, 1, "]");
}

/* The parts of a line. They are chosen by the names of the logs (invariant 2). */
typedef struct {
    int  bar;      /* width of the bar; 0: no bar */
    int  rate;     /* examples per second: 2: "20.1k ex/s", 1: "20.1k/s", 0: not shown */
    bool is_tight; /* logs are separated by spaces only, without dashes */
} layout;

enum { DASHES = 2 }; /* columns that a log needs less if the line is tight */

/* Chooses the fullest layout that leaves room for n logs of `numbers` columns. Returns false if
 * there is none. The bar is dropped first, because the steps show the same. */
static bool fit_layout(const line *l, int n, int numbers, bool may_be_tight, layout *parts)
{
    static const layout all[] = {{12, 2, false}, {6, 1, false}, {4, 1, true}, {0, 1, true}};
    static const int    rate_columns[] = {0, 8, 11};
    int room = l->style->columns - 1 - l->columns - 2 - TIME_COLUMNS - STEP_COLUMNS - numbers;

    for (int i = 0; i < (may_be_tight ? 4 : 2); i++) {
        int bar = room - rate_columns[all[i].rate] + (all[i].is_tight ? DASHES * n : 0);

        if (bar < all[i].bar)
            continue;
        *parts = all[i];
        if (parts->bar > 0)
            parts->bar = bar < BAR_MAX ? bar : BAR_MAX;
        return true;
    }
    return false;
}

/* Returns the number of logs that are not of a validation. */
static int count_training_logs(const ch_logs *logs)
{
    int n = 0;

    for (int i = 0; i < logs->n; i++)
        n += !ch__is_of_validation(logs->at[i].name);
    return n;
}

/* Chooses the layout of the line. Tries to fit all logs; then only the logs of training,
 * because those of a validation can be on further lines; then only the first log, which is the
 * loss. */
static layout choose_layout(const line *l, const ch_logs *logs)
{
    static char                loss[] = "loss", accuracy[] = "accuracy";
    static struct ch_log_entry usual_names[] = {{loss, 0}, {accuracy, 0}};
    static const ch_logs       usual = {2, 2, usual_names};
    const ch_progress_style   *style = l->style;
    const ch_logs             *expected = logs->n > 0 ? logs : style->expected;
    ch_logs                    one;
    layout                     parts = {0};

    expected = expected != NULL && expected->n > 0 ? expected : &usual;
    one = (ch_logs){1, 1, expected->at};
    if (!fit_layout(l, expected->n, ch__progress_reserve(expected, style->is_utf8, true), false,
                    &parts) &&
        !fit_layout(l, count_training_logs(expected),
                    ch__progress_reserve(expected, style->is_utf8, false), true, &parts))
        (void)fit_layout(l, 1, ch__progress_reserve(&one, style->is_utf8, true), true, &parts);
    return parts;
}

static void add_head(line *l, const ch_progress_record *r)
{
    char text[64];
    int  n, digits = snprintf(NULL, 0, "%" PRId64, r->steps);

    if (r->steps >= 0)
        n = snprintf(text, sizeof(text), " %*" PRId64 "/%" PRId64, digits, r->step, r->steps);
    else
        n = snprintf(text, sizeof(text), " %" PRId64, r->step);
    add(l, BOLD, n, text);
}

/* Writes the remaining time if it can be estimated, otherwise the elapsed time. */
static const char *time_of(const ch_progress_record *r, char when[40])
{
    double left = r->per_step * (double)(r->steps > r->step ? r->steps - r->step : 0);

    if (r->is_done)
        snprintf(when, 40, "%s", ch__short_elapsed(r->epoch_seconds).text);
    else if (!r->is_validating && r->steps >= 0 && r->per_step > 0)
        snprintf(when, 40, "ETA %s", ch__short_time(left).text);
    else
        snprintf(when, 40, "%s", ch__short_time(r->epoch_seconds).text);
    return when;
}

static void add_times(line *l, const ch_progress_record *r, int rate)
{
    char text[64], when[40];
    int  n;

    n = snprintf(text, sizeof(text), " %s", time_of(r, when));
    add(l, NULL, n, text);
    if (r->per_step > 0) {
        n = snprintf(text, sizeof(text), " %s", ch__short_step(r->per_step).text);
        add(l, NULL, n, text);
    }
    if (r->per_second > 0 && rate > 0) {
        n = snprintf(text, sizeof(text), " %s%s/s", ch__short_rate(r->per_second).text,
                     rate == 2 ? " ex" : "");
        add(l, NULL, n, text);
    }
}

static void add_validation(line *l, const ch_progress_record *r)
{
    char text[80];
    int  n;

    if (r->validation_steps > 0)
        n = snprintf(text, sizeof(text), " - validating %" PRId64 "/%" PRId64,
                     r->validation_step, r->validation_steps);
    else
        n = snprintf(text, sizeof(text), " - validating %" PRId64, r->validation_step);
    add(l, NULL, n, text);
}

/* Writes a log with its separator, and returns its columns. */
static int number_text(const line *l, const struct ch_log_entry *e, char text[NAME_BYTES + 40])
{
    char     name[NAME_BYTES];
    ch_short value = ch__short_number(e->value);
    int      n = clean_name(e->name, l->style->is_utf8, name);

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

/* Adds the logs that fit, to a line that will be drawn again. */
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

/* Adds all logs to a line that stays, on as many lines as are needed. If they do not fit on one
 * line, the logs of the validation begin a new line. */
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
            text[1] = ' '; /* no dash before the first log of a line */
        }
        is_val = is_val || begins_val;
        add(l, NULL, columns, text);
    }
}

int ch__progress_live(ch_text *o, const ch_progress_record *r, const ch_progress_style *style)
{
    line   l = {.o = o, .style = style};
    layout parts;

    add_head(&l, r);
    parts = choose_layout(&l, r->logs);
    l.is_tight = parts.is_tight;
    if (parts.bar > 0 && has_room(&l, 1 + parts.bar)) {
        add(&l, NULL, 1, " ");
        if (r->steps > 0)
            add_bar(&l, parts.bar, fmin((double)r->step / (double)r->steps, 1));
        else if (r->is_done)
            add_bar(&l, parts.bar, 1);
        else
            add_moving_bar(&l, parts.bar, style->frame);
    }
    add_times(&l, r, parts.rate);
    if (r->is_validating)
        add_validation(&l, r);
    if (r->is_done)
        add_all_numbers(&l, r->logs);
    else
        add_numbers(&l, r->logs);
    return l.columns;
}

/* ---- line for a file ---- */

void ch__progress_plain(ch_text *o, const ch_progress_record *r)
{
    char name[NAME_BYTES], when[40];

    ch__text_add(o, "%s - %" PRId64, r->title, r->step);
    if (r->steps >= 0)
        ch__text_add(o, "/%" PRId64, r->steps);
    ch__text_add(o, " - %s", time_of(r, when));
    if (r->per_step > 0)
        ch__text_add(o, " - %s", ch__short_step(r->per_step).text);
    if (r->per_second > 0)
        ch__text_add(o, " - %s ex/s", ch__short_rate(r->per_second).text);
    for (int i = 0; i < r->logs->n; i++) {
        (void)clean_name(r->logs->at[i].name, true, name);
        ch__text_add(o, " - %s: %s", name, ch__short_number(r->logs->at[i].value).text);
    }
    ch__text_add(o, "\n");
}

/* ---- JSON object ---- */

static void add_string(ch_text *o, const char *s)
{
    char text[8];

    ch__text_add(o, "\"");
    while (*s != '\0') {
        s += ch__json_character(s, text);
        ch__text_add(o, "%s", text);
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

void ch__progress_object(ch_text *o, const ch_progress_record *r)
{
    ch__text_add(o, "{\"event\": \"%s\"", r->event);
    add_count(o, "epoch", r->epoch);
    add_count(o, "epochs", r->epochs);
    add_count(o, "step", r->step);
    add_count(o, "steps", r->steps);
    ch__text_add(o, ", \"seconds\": %s, \"examples_per_second\": %s",
                 ch__rounded_text(r->seconds, 1e3).text,
                 r->per_second > 0 ? ch__rounded_text(r->per_second, 1e1).text : "null");
    if (r->why != NULL) {
        ch__text_add(o, ", \"stopped\": ");
        add_string(o, r->why);
    }
    ch__text_add(o, ", \"logs\": {");
    for (int i = 0; i < r->logs->n; i++) {
        ch__text_add(o, i > 0 ? ", " : "");
        add_string(o, r->logs->at[i].name);
        ch__text_add(o, ": %s", ch__number_text(r->logs->at[i].value, true).text);
    }
    ch__text_add(o, "}}\n");
}
