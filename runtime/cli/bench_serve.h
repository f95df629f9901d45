/* kt bench serve, kt bench compare: load on running servers. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_SERVE_H
#define KT_RUNTIME_BENCH_SERVE_H

/* argv[0] is "serve" or "compare"; exit codes of command.h. */
int kt_bench_serve(int argc, char **argv);
int kt_bench_compare(int argc, char **argv);

#endif
