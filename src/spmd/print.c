/* spmd/print.c -- prints reports of divided steps, and logs what is worth a notice.
 *
 * A report (ch_step_report) has a list of values for the step and for each body, and a list of
 * transfers for each value. A printer walks both. The public function prints all of the last
 * run; the partitioner logs a few lines of every step that it divides. Source lines are looked
 * up here, because most reports are never printed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "graph/function.h"
#include "graph/where.h"
#include "spmd/report.h"
#include "tensor/print.h"

/* Columns of a line. A line that would be wider is broken, if it can be. */
enum { WIDTH = 100, WHERE_COLUMN = 64, INDENT = 4 };
enum { CACHED = 256, WHERE_TEXT = 96 };

/* A source line. To find it is slow, so a printer caches the lines by address. */
typedef struct source_line {
    const void *caller;
    char        text[WHERE_TEXT];
} source_line;

typedef struct printer {
    ch_text     *o;
    source_line *cache; /* CACHED elements; NULL: out of memory */
} printer;

static void printer_begin(printer *p, ch_text *o)
{
    *p = (printer){.o = o, .cache = ch__calloc(CACHED, sizeof(source_line))};
}

/* ---- parts of a line ---- */

/* Prints a number with a comma between thousands. */
static void print_number(ch_text *o, int64_t n)
{
    if (n < 1000) {
        ch__text_add(o, "%d", (int)n);
        return;
    }
    print_number(o, n / 1000);
    ch__text_add(o, ",%03d", (int)(n % 1000));
}

/* Copies the source line of an address, such as "train.c:44", to text[WHERE_TEXT]. In a program
 * without debug information it is "train+0x1c", without the advice of ch__where. It is empty if
 * nothing is known. */
static const char *find_line(printer *p, const void *caller, char *text)
{
    source_line  own = {.caller = NULL};
    source_line *line = p->cache != NULL ? &p->cache[((uintptr_t)caller >> 2) % CACHED] : &own;

    if (line->caller != caller) {
        char *advice;

        line->caller = caller;
        ch__where(caller, line->text, sizeof(line->text));
        advice = strstr(line->text, " (");
        if (advice != NULL)
            *advice = '\0';
    }
    (void)snprintf(text, WHERE_TEXT, "%s", line->text);
    return text;
}

/* Prints `before` and the source line of an address, if it is known. */
static void print_where(printer *p, const char *before, const void *caller)
{
    char line[WHERE_TEXT];

    if (find_line(p, caller, line)[0] != '\0')
        ch__text_add(p->o, "%s%s", before, line);
}

/* Returns true if both addresses have the same source line, and it is known. */
static bool same_line(printer *p, const void *a, const void *b)
{
    char line[WHERE_TEXT], other[WHERE_TEXT];

    return find_line(p, a, line)[0] != '\0' && strcmp(line, find_line(p, b, other)) == 0;
}

/* Prints "sub %18 at train.c:44", or "read table %1". */
static void print_call(printer *p, const ch_report_call *call, int id)
{
    ch__text_add(p->o, "%s%s%s", call->op, call->name != NULL ? " " : "",
                 call->name != NULL ? call->name : "");
    if (id >= 0)
        ch__text_add(p->o, " %%%d", id);
    print_where(p, " at ", call->caller);
}

/* Prints the value, and perhaps the call, that a layout was taken from. */
static void print_neighbour(printer *p, const ch_report_layout *l, const void *known)
{
    ch__text_add(p->o, ": from %%%d", l->from);
    if (l->is_outside)
        ch__text_add(p->o, " outside the body");
    else if (l->is_own)
        ch__text_add(p->o, "%s", l->is_in_body ? " in its body" : "");
    else
        ch__text_add(p->o, " %s %s", l->is_in_body ? "in a body of" : "through", l->at.op);
    if (!l->is_own && !l->is_outside && !same_line(p, l->at.caller, known))
        print_where(p, " at ", l->at.caller);
}

/* Prints the origin of a layout, after a colon. `known` is an address whose source line is
 * printed beside it. */
static void print_origin(printer *p, const ch_report_layout *l, const void *known)
{
    switch (l->source) {
    case CH_LAYOUT_DEFAULT:
        ch__text_add(p->o, ": nothing splits it");
        return;
    case CH_LAYOUT_ANNOTATION:
        if (!l->is_own || known == NULL)
            ch__text_add(p->o, ": annotation");
        if (!same_line(p, known, l->at.caller))
            print_where(p, " at ", l->at.caller);
        return;
    case CH_LAYOUT_CHOSEN_DEVICE:
        ch__text_add(p->o, ": ch_logical_device_enter");
        return;
    case CH_LAYOUT_INPUT:
        ch__text_add(p->o, ": the strategy splits inputs");
        return;
    case CH_LAYOUT_VARIABLE:
        ch__text_add(p->o, ": variable %s", l->name != NULL ? l->name : "");
        return;
    case CH_LAYOUT_RULE:
        ch__text_add(p->o, ": rule \"%s\"", l->name);
        return;
    case CH_LAYOUT_SEARCH:
        ch__text_add(p->o, ": found by search");
        return;
    case CH_LAYOUT_NEIGHBOUR:
        print_neighbour(p, l, known);
        return;
    case CH_LAYOUT_CHEAPEST:
        ch__text_add(p->o, ": it has the least cost");
        return;
    case CH_LAYOUT_UNDIVIDED:
        ch__text_add(p->o, ": %s", l->name != NULL ? l->name : "the call cannot be divided");
        return;
    case CH_LAYOUT_PARTIAL:
        return;
    }
}

static const char *name_of_kind(ch_traffic_kind kind)
{
    static const char *const names[CH_TRAFFIC_COUNT] = {
        [CH_TRAFFIC_NONE] = "copy",
        [CH_TRAFFIC_ALL_REDUCE] = "all-reduce",
        [CH_TRAFFIC_REDUCE_SCATTER] = "reduce-scatter",
        [CH_TRAFFIC_ALL_GATHER] = "all-gather",
        [CH_TRAFFIC_ALL_TO_ALL] = "all-to-all",
        [CH_TRAFFIC_HALO] = "halo",
        [CH_TRAFFIC_OTHER] = "transfer",
        [CH_TRAFFIC_HOST] = "host",
        [CH_TRAFFIC_CROSS] = "cross-replica",
    };

    return names[kind];
}

/* Prints the use of a transfer, such as "sub %18 at train.c:44". */
static void print_use(printer *p, const ch_report_move *m)
{
    if (m->use == CH_FOR_CALL)
        print_call(p, &m->call, m->id);
    else if (m->use == CH_FOR_VARIABLE)
        ch__text_add(p->o, "the new value of variable %s", m->name);
    else if (m->name != NULL)
        ch__text_add(p->o, "result %s", m->name);
    else
        ch__text_add(p->o, "result %d", m->id);
}

/* Prints the layout that the use of a transfer needs, such as "which is replicated: nothing
 * splits it". Devices read and write parts of arrays on the host in any layout. */
static void print_need(printer *p, const ch_report_move *m)
{
    if (m->kind == CH_TRAFFIC_HOST)
        return;
    ch__text_add(p->o, "which is %s", m->is.text);
    if (m->use != CH_FOR_VARIABLE)
        print_origin(p, &m->is, m->call.caller);
}

/* ---- lines ---- */

/* Prints a line such as
 *    all-reduce  30,720 B  for sub %18 at train.c:44, which is replicated: nothing splits it */
static void print_move(printer *p, const ch_report_move *m, int indent)
{
    ch_text *o = p->o, need = ch__text(NULL, 0);
    size_t   begin = o->used;

    p->o = &need; /* to know its length */
    print_need(p, m);
    p->o = o;
    ch__text_add(o, "%*s%s  ", indent + INDENT, "", name_of_kind(m->kind));
    print_number(o, m->bytes);
    ch__text_add(o, " B  for ");
    print_use(p, m);
    if (need.used > 0 && o->used - begin + 2 + need.used > WIDTH)
        ch__text_add(o, ",\n%*s", indent + 2 * INDENT, "");
    else if (need.used > 0)
        ch__text_add(o, ", ");
    print_need(p, m);
    ch__text_add(o, "\n");
}

/* Prints the layout of a value, and the sizes of its parts. */
static void print_layout(printer *p, const ch_report_value *v)
{
    if (v->is_host) {
        ch__text_add(p->o, "  on the host");
        return;
    }
    ch__text_add(p->o, "  %s", v->layout.text);
    if (!v->is_whole) {
        ch__text_add(p->o, v->is_even ? ", " : ", at most ");
        ch__text_shape(p->o, v->each);
        ch__text_add(p->o, " each");
    }
    print_origin(p, &v->layout, v->call.caller);
}

/* Prints the scope and the source line of a call, such as "net/dense_1, at train.c:41", from
 * column WHERE_COLUMN on: further to the right or left if that fits into the line, otherwise on
 * a line of its own. The line of the call begins at `begin`. */
static void print_place(printer *p, const ch_report_call *call, size_t begin)
{
    char    text[WHERE_TEXT + 16];
    ch_text place = ch__text(text, sizeof(text)), *o = p->o;
    size_t  least = o->used - begin + 2, column, length;

    p->o = &place;
    text[0] = '\0';
    print_where(p, call->scope != NULL ? ", at " : "at ", call->caller);
    p->o = o;
    length = place.used + (call->scope != NULL ? strlen(call->scope) : 0);
    if (length == 0)
        return;
    column = least > WHERE_COLUMN ? least : WHERE_COLUMN;
    if (column + length > WIDTH && least + length <= WIDTH) {
        column = WIDTH - length;
    } else if (column + length > WIDTH && least > WHERE_COLUMN) {
        ch__text_add(o, "\n");
        begin = o->used;
        column = WHERE_COLUMN;
    }
    ch__text_add(o, "%*s%s%s", (int)(begin + column - o->used), "",
                 call->scope != NULL ? call->scope : "", text);
}

static void print_body(printer *p, const ch_report_body *b, int indent);

/* Prints the line of a value, its transfers, and the bodies of its call. */
static void print_value(printer *p, const ch_report_value *v, int indent)
{
    size_t begin = p->o->used;

    ch__text_add(p->o, "%*s", indent, "");
    if (v->id >= 0)
        ch__text_add(p->o, "%%%d ", v->id);
    ch__text_add(p->o, "%s%s%s", v->call.op, v->call.name != NULL ? " " : "",
                 v->call.name != NULL ? v->call.name : "");
    if (v->id >= 0) {
        ch__text_add(p->o, "  %s", ch_dtype_name(v->dtype));
        ch__text_shape(p->o, v->shape);
    }
    print_layout(p, v);
    print_place(p, &v->call, begin);
    ch__text_add(p->o, "\n");
    for (const ch_report_move *m = v->move; m != NULL; m = m->next)
        print_move(p, m, indent);
    for (const ch_report_body *b = v->body; b != NULL; b = b->next) {
        ch__text_add(p->o, "%*s%s", indent + INDENT, "", b->name);
        if (b->times >= 0)
            ch__text_add(p->o, ", %lld times", (long long)b->times);
        ch__text_add(p->o, ":\n");
        print_body(p, b, indent + 2 * INDENT);
    }
}

/* Recursive: the depth is that of the recorded program. */
static void print_body(printer *p, const ch_report_body *b, int indent)
{
    for (const ch_report_value *v = b->first; v != NULL; v = v->next)
        print_value(p, v, indent);
}

/* ---- reports ---- */

/* Prints "train: 12 calls on 4 logical devices, 1 program; devices exchange 3,072 B". */
static void print_summary(ch_text *o, const char *step, const ch_layout_report *r)
{
    ch__text_add(o, "%s: %d calls on %d logical device%s, %d program%s", step, r->calls,
                 r->devices, r->devices == 1 ? "" : "s", r->programs,
                 r->programs == 1 ? "" : "s");
    if (r->devices > 1) {
        ch__text_add(o, "; devices exchange ");
        print_number(o, r->all_reduce.bytes + r->reduce_scatter.bytes + r->all_gather.bytes +
                            r->all_to_all.bytes + r->halo.bytes + r->other.bytes);
        ch__text_add(o, " B");
    }
    if (r->cross_replica.count > 0) {
        ch__text_add(o, "; collectives between replicas move ");
        print_number(o, r->cross_replica.bytes);
        ch__text_add(o, " B");
    }
    ch__text_add(o, "\n");
}

/* Prints the plan that a search has found, and the costs of its starting points. */
static void print_search(ch_text *o, const ch_search_report *r)
{
    static const char *const inputs[] = {"whole", "split along axis 0", "split along axis 1"};
    static const char *const variables[] = {"whole", "along axis 0", "along the last axis"};

    ch__text_add(o, "layouts found by search: cost ");
    print_number(o, (int64_t)r->cost);
    ch__text_add(o, " (");
    print_number(o, (int64_t)r->bytes);
    ch__text_add(o, " B, ");
    print_number(o, (int64_t)r->operations);
    ch__text_add(o, " operations, %.0f barriers); %d plans\n", r->barriers, r->n_plans);
    if (r->input_axis >= 0)
        ch__text_add(o, "%*sinputs  %s\n", INDENT, "", inputs[r->input_axis]);
    for (int i = 0; i < r->n_classes; i++) {
        const ch_found_class *c = &r->class[i];

        ch__text_add(o, "%*s%s  %s", INDENT, "", c->name, ch_dtype_name(c->dtype));
        ch__text_shape(o, c->shape);
        ch__text_add(o, "  %s", c->layout);
        if (c->n_vars > 1)
            ch__text_add(o, ", as %d more", c->n_vars - 1);
        ch__text_add(o, "\n");
    }
    if (r->needs > 0)
        ch__text_add(o, "%*smemory of a device: about %lld B\n", INDENT, "",
                     (long long)r->needs);
    for (int i = 0; i < CH_SEARCH_STARTS; i++) {
        ch__text_add(o, "%*sstart: variables %s, inputs %s: cost ", INDENT, "",
                     variables[i / 2], inputs[i % 2]);
        print_number(o, (int64_t)r->start_cost[i]);
        ch__text_add(o, "%s\n", r->start_fits[i] ? "" : ", exceeds the memory");
    }
}

int ch_function_print_layouts(ch_function *f, char *text, size_t size)
{
    ch_text          o = ch__text(text, size);
    ch_prepared     *last = f != NULL ? ch__function_last(f) : NULL;
    ch_layout_report r;
    printer          p;

    ch__text_add(&o, "%s", f == NULL ? "NULL" : "");
    if (last != NULL) {
        const ch_step_report *own = ch__step_report_of(last);

        ch__report_planned(last, &r);
        print_summary(&o, f->name, &r);
        if (own != NULL && own->search != NULL)
            print_search(&o, own->search);
        printer_begin(&p, &o);
        if (own != NULL)
            print_body(&p, &own->step, 0);
        ch__free(p.cache);
    }
    ch__prepared_unref(last);
    return ch__text_length(&o);
}

/* ---- notices ---- */

/* Removes the text of the last notice. */
static void begin_notice(printer *p)
{
    *p->o = ch__text(p->o->text, p->o->size);
}

static void log_repeated(printer *p, const char *step, const ch_report_value *v)
{
    begin_notice(p);
    print_call(p, &v->call, v->id);
    ch__text_add(p->o,
                 ": every logical device computes the whole call, although an input is split; "
                 "its result is %s",
                 v->layout.text);
    print_origin(p, &v->layout, v->call.caller);
    ch__log(CH_LOG_INFO, "replicated", "%s: %s", step, p->o->text);
}

static void log_move(printer *p, const char *step, const ch_report_value *v,
                     const ch_report_move *m)
{
    begin_notice(p);
    ch__text_add(p->o, "%s of ", name_of_kind(m->kind));
    print_number(p->o, m->bytes);
    ch__text_add(p->o, " B: ");
    print_call(p, &v->call, v->id);
    ch__text_add(p->o, " is %s, and is needed for ", v->layout.text);
    print_use(p, m);
    ch__text_add(p->o, ", ");
    print_need(p, m);
    ch__log(CH_LOG_INFO, "reshard", "%s: %s", step, p->o->text);
}

/* Returns true for a large transfer between cores that no annotation asks for. */
static bool deserves_notice(const ch_report_move *m)
{
    return !m->is_asked && m->kind != CH_TRAFFIC_HOST &&
           m->bytes > ch__config()->reshard_notice;
}

static void log_body(printer *p, const char *step, const ch_report_body *b)
{
    for (const ch_report_value *v = b->first; v != NULL; v = v->next) {
        if (v->is_repeated)
            log_repeated(p, step, v);
        for (const ch_report_move *m = v->move; m != NULL; m = m->next)
            if (deserves_notice(m))
                log_move(p, step, v, m);
        for (const ch_report_body *inner = v->body; inner != NULL; inner = inner->next)
            log_body(p, step, inner);
    }
}

void ch__step_report_log(const ch_step_report *r)
{
    char    text[512];
    ch_text line = ch__text(text, sizeof(text));
    printer p;

    if (!ch__log_is_enabled(CH_LOG_INFO))
        return;
    printer_begin(&p, &line);
    log_body(&p, r->step.name, &r->step);
    ch__free(p.cache);
}
