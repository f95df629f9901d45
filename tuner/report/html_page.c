/* Style, script and text of the HTML report. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "tuner/report/html.h"
#include "tuner/space/cell.h"

/* Hues of Okabe and Ito, which the colour-blind can tell apart; darker on light, lighter on
 * dark. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fcfcfd;--card:#fff;--fg:#1b1f24;--soft:#5b6570;"
    "--line:#dfe3e8;--accent:#0b5fa5;--good:#00745a;--bad:#b3400a;--c0:#0b5fa5;--c1:#b35900;"
    "--c2:#00745a;--c3:#8f3f77;--c4:#7a6a00;--c5:#a8321f}"
    "@media(prefers-color-scheme:dark){:root{--bg:#111418;--card:#181c22;--fg:#e6e9ed;"
    "--soft:#9aa5b1;--line:#2e353e;--accent:#5bb0f0;--good:#3cc79f;--bad:#f08a4b;--c0:#5bb0f0;"
    "--c1:#e9a23b;--c2:#3cc79f;--c3:#d98cc0;--c4:#d8c840;--c5:#f08a7b}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "main{max-width:1240px;margin:0 auto;padding:28px 20px 64px}"
    "h1{font-size:26px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}"
    "h2{font-size:19px;margin:44px 0 4px}p{margin:4px 0 12px;max-width:78ch}"
    ".soft{color:var(--soft)}code,.mono{font-family:ui-monospace,Menlo,Consolas,monospace;"
    "font-size:.9em}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;"
    "margin:20px 0}"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px "
    "14px}"
    ".tile "
    "b{display:block;font-size:21px;white-space:nowrap;line-height:1.2;font-variant-numeric:"
    "tabular-nums}"
    ".tile span{color:var(--soft);font-size:13px}"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px;"
    "overflow-x:auto}.long{max-height:38rem;overflow-y:auto;padding-top:0}.long "
    "th{padding-top:14px}"
    "nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:10px 0 0;font-size:14px}"
    "a{color:var(--accent)}"
    "svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}"
    "svg text{fill:var(--fg)}svg .t{fill:var(--soft)}svg .g{stroke:var(--line)}"
    "svg .a{stroke:var(--soft)}"
    ".key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 2px 0;padding:0;list-style:none;"
    "font-size:13px}.key i{display:inline-block;width:11px;height:11px;border-radius:6px;"
    "margin-right:6px}"
    "table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}"
    "th,td{padding:5px 7px;text-align:left;border-bottom:1px solid var(--line);"
    "vertical-align:top;white-space:nowrap}th{position:sticky;top:0;background:var(--card);white-"
    "space:nowrap}"
    "th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid "
    "var(--accent)}th[aria-sort=ascending] button::after{content:' \\25B2'}"
    "th[aria-sort=descending] button::after{content:' \\25BC'}"
    "td.n,th.n{text-align:right}td.w{white-space:normal;min-width:22em}"
    "details{border-bottom:1px solid var(--line)}details:last-child{border:0}"
    "summary{cursor:pointer;padding:7px 2px;font-size:13px}"
    "summary b{font-weight:600;margin-right:10px}summary:focus-visible{outline:2px solid "
    "var(--accent)}"
    "tr.wide td{color:var(--soft)}.warn{border-color:var(--bad)}.warn p{margin:4px 0}"
    ".up{color:var(--good)}.bad{color:var(--bad)}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:0;font-size:14px}"
    "dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}"
    "@media(max-width:640px){main{padding:18px 12px 40px}dl{grid-template-columns:1fr}"
    "dt{margin-top:6px}svg{min-width:860px}#roofline+p::after{content:' Pictures and tables '"
    "'scroll sideways.'}}"
    "@media print{.card{overflow:visible}.long{max-height:none}th{position:static}}";

/* Sort by data-v where there is one, else by text. */
static const char script[] =
    "document.querySelectorAll('th button').forEach(function(b){b.addEventListener('click',"
    "function(){var th=b.parentNode,t=th.closest('table'),i=th.cellIndex,"
    "up=th.getAttribute('aria-sort')!=='ascending';"
    "t.querySelectorAll('th').forEach(function(h){h.removeAttribute('aria-sort')});"
    "th.setAttribute('aria-sort',up?'ascending':'descending');"
    "var v=function(r){var c=r.cells[i],d=c.dataset.v;return d===undefined?c.textContent:+d};"
    "Array.from(t.tBodies[0].rows).sort(function(a,b){var x=v(a),y=v(b),"
    "o=typeof x==='number'?x-y:x.localeCompare(y,'en',{numeric:true});return up?o:-o})"
    ".forEach(function(r){t.tBodies[0].appendChild(r)})})})";

void kt_html_text(FILE *to, const char *text) {
    for (; *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity)
            fputs(entity, to);
        else
            fputc(*text, to);
    }
}

void kt_html_begin(FILE *to, const char *title) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
          "<link rel=\"icon\" href=\"data:,\"><title>kttune: ",
          to);
    kt_html_text(to, title);
    fprintf(to, "</title>\n<style>%s</style></head><body><main>\n", style);
}

void kt_html_end(FILE *to) {
    fprintf(to, "</main><script>%s</script></body></html>\n", script);
}

double kt_log_axis_at(const kt_log_axis *a, double value) {
    return a->from + (a->to - a->from) * log(value / a->low) / log(a->high / a->low);
}

double kt_log_axis_tick(double value) {
    static const double steps[] = {1, 2, 5, 10};
    double decade = pow(10, floor(log10(value) + 1e-9));
    for (int i = 0; i < 4; i++)
        if (steps[i] * decade >= value * (1 - 1e-9)) return steps[i] * decade;
    return 10 * decade;
}

char *kt_html_matrix(const kt_table_row *row, char *out, size_t out_bytes) {
    const kt_problem *p = &row->problem;
    char more[KT_CELL_MORE_BYTES];
    int n = snprintf(out, out_bytes, "%s %s/%s %lldx%lld", kt_op_name(p->op),
                     kt_weight_format_name(p->weights), kt_act_format_name(p->acts),
                     (long long)p->n, (long long)p->k);
    if (p->experts > 0 && n > 0 && (size_t)n < out_bytes)
        n += snprintf(out + n, out_bytes - (size_t)n, " %lld/%lld", (long long)p->experts,
                      (long long)p->topk);
    if (n > 0 && (size_t)n < out_bytes)
        snprintf(out + n, out_bytes - (size_t)n, "%s t=%d", kt_cell_more(p, more, sizeof more),
                 row->threads);
    return out;
}
