# The build's tables: one descriptor per file, listed by file name.
# SPDX-License-Identifier: Apache-2.0

# kt_write_table(OUT <file.c> HEADER <h> TYPE <type> PREFIX <symbol prefix> ARRAY <array> COUNT <count>
#                STEMS <stem>...): write extern declarations and the array, only when changed.
function(kt_write_table)
  cmake_parse_arguments(T "" "OUT;HEADER;TYPE;PREFIX;ARRAY;COUNT" "STEMS" ${ARGN})
  list(SORT T_STEMS)
  list(LENGTH T_STEMS n)
  set(text "/* Written by the build from file names. */\n#include \"${T_HEADER}\"\n\n")
  foreach(stem IN LISTS T_STEMS)
    string(APPEND text "extern const ${T_TYPE} ${T_PREFIX}${stem};\n")
  endforeach()
  string(APPEND text "\nconst ${T_TYPE} *const ${T_ARRAY}[] = {\n")
  foreach(stem IN LISTS T_STEMS)
    string(APPEND text "    &${T_PREFIX}${stem},\n")
  endforeach()
  string(APPEND text "    0};\nconst size_t ${T_COUNT} = ${n};\n")
  file(CONFIGURE OUTPUT "${T_OUT}" CONTENT "${text}" @ONLY)
endfunction()

# kt_file_table(<what> HEADER <h> ARRAY <array> [PREFIX <p>] FILES <glob>): the table of type kt_<what> over one
# descriptor kt_<what>_<name> (or <p><name>) per file, named after it: verb_run.c, cmd_run.c or run.c make `run`.
# Written to generated/<what>_table.c; the number of entries is kt_builtin_<what>_count.
function(kt_file_table what)
  cmake_parse_arguments(T "" "HEADER;ARRAY;PREFIX;FILES" "" ${ARGN})
  if(NOT T_PREFIX)
    set(T_PREFIX kt_${what}_)
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${T_FILES})
  set(stems)
  foreach(file IN LISTS files)
    get_filename_component(stem "${file}" NAME_WE)
    string(REGEX REPLACE "^(cmd|${what})_" "" stem ${stem})
    list(APPEND stems ${stem})
  endforeach()
  kt_write_table(OUT ${CMAKE_BINARY_DIR}/generated/${what}_table.c HEADER ${T_HEADER}
                 TYPE kt_${what} PREFIX ${T_PREFIX} ARRAY ${T_ARRAY}
                 COUNT kt_builtin_${what}_count STEMS ${stems})
endfunction()

# kt_embed(<file> SYMBOL <name>): generated/<name>.c with the file's bytes as `const char <name>[]` and their
# number as `const size_t <name>_size`; made again when the file changes.
function(kt_embed file)
  cmake_parse_arguments(T "" "SYMBOL" "" ${ARGN})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(REPLACE "'\\x0a'," "'\\x0a',\n" bytes "${bytes}")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/${T_SYMBOL}.c" @ONLY CONTENT
       "/* Written by the build from ${file}. */\n#include <stddef.h>\n\nextern const char ${T_SYMBOL}[];\nextern const size_t ${T_SYMBOL}_size;\nconst char ${T_SYMBOL}[] = {\n${bytes}};\nconst size_t ${T_SYMBOL}_size = sizeof ${T_SYMBOL};\n")
endfunction()

# kt_embed_texts(<name> FILES <glob>...): generated/<name>.c with `const char *<name>(const char *file)`, the text of a
# file by its name without folders, or NULL; made again when a file changes.
function(kt_embed_texts name)
  cmake_parse_arguments(T "" "" "FILES" ${ARGN})
  file(GLOB files CONFIGURE_DEPENDS ${T_FILES})
  set(texts)
  set(cases)
  set(i 0)
  foreach(file IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    get_filename_component(short "${file}" NAME)
    file(READ "${file}" bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    string(REPLACE "'\\x0a'," "'\\x0a',\n" bytes "${bytes}")
    string(APPEND texts "static const char text_${i}[] = {\n${bytes}0};\n")
    string(APPEND cases "    if (strcmp(file, \"${short}\") == 0) return text_${i};\n")
    math(EXPR i "${i} + 1")
  endforeach()
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/${name}.c" @ONLY CONTENT
       "/* Written by the build. */\n#include <string.h>\n\nconst char *${name}(const char *file);\n${texts}\nconst char *${name}(const char *file) {\n${cases}    return NULL;\n}\n")
endfunction()
