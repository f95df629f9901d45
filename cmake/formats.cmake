# Weight formats: what the tree knows of them at compile time, out of one line each of kernels/formats/w<name>.c
# (kernels/formats/format.h says what the lines are).
# SPDX-License-Identifier: Apache-2.0

# kt_format_line(<file> <word> <out>): the arguments of the line `KT_FORMAT_<word>(...);`, or an empty text.
function(kt_format_line file word out)
  file(STRINGS "${file}" lines REGEX "^KT_FORMAT_${word}[(]")
  list(LENGTH lines n)
  if(n GREATER 1)
    message(FATAL_ERROR "${file}: ${n} lines KT_FORMAT_${word}, expected one")
  endif()
  string(REGEX REPLACE "^KT_FORMAT_${word}[(](.*)[)].*$" "\\1" text "${lines}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# kt_weight_formats(OUT <file.h> FILES <glob>): the enumeration kt_weight_format and lists of formats for macros,
# by their numbers; written only when changed.
function(kt_weight_formats)
  cmake_parse_arguments(T "" "OUT;FILES" "" ${ARGN})
  set(depends)
  if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(depends CONFIGURE_DEPENDS)
  endif()
  file(GLOB files ${depends} ${T_FILES})
  set(keys)
  foreach(file IN LISTS files)
    if(depends)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    endif()
    kt_format_line("${file}" IS line)
    if(NOT line MATCHES "^([A-Z0-9_]+), ([0-9]+)$")
      message(FATAL_ERROR "${file}: no line KT_FORMAT_IS(ID, NUMBER);")
    endif()
    set(id ${CMAKE_MATCH_1})
    math(EXPR key "100 + ${CMAKE_MATCH_2}")
    if(DEFINED file_${key})
      message(FATAL_ERROR "${file}: number ${CMAKE_MATCH_2} belongs to ${file_${key}}")
    endif()
    list(APPEND keys ${key})
    set(file_${key} "${file}")
    set(id_${key} ${id})
  endforeach()
  list(SORT keys)
  set(expected 101)
  set(all)
  set(panels)
  set(blocks)
  set(devices)
  set(enum)
  foreach(key IN LISTS keys)
    get_filename_component(stem "${file_${key}}" NAME_WE)
    math(EXPR number "${key} - 100")
    if(NOT key EQUAL expected)
      math(EXPR expected "${expected} - 100")
      message(FATAL_ERROR "${file_${key}}: number ${number}, expected ${expected}, the next that is free")
    endif()
    math(EXPR expected "${expected} + 1")
    set(id ${id_${key}})
    string(APPEND enum "    KT_W_${id} = ${number}, /* ${stem} */\n")
    string(APPEND all " \\\n    each(${id}, ${stem})")
    kt_format_line("${file_${key}}" BLOCKS panel)
    if(panel)
      string(APPEND blocks " \\\n    each(${id})")
    else()
      kt_format_line("${file_${key}}" PANEL panel)
    endif()
    kt_format_line("${file_${key}}" DEVICE device)
    if(panel)
      string(REPLACE ", " ";" word "${panel}")
      list(LENGTH word n)
      if(n EQUAL 8)
        list(APPEND word NO_GRID)
      elseif(NOT n EQUAL 9)
        message(FATAL_ERROR "${file_${key}}: ${n} words say how panels are built, expected 8 or 9")
      endif()
      list(JOIN word ", " panel)
      string(APPEND panels " \\\n    each(${id}, ${panel})")
      if(NOT device) # records have the same fields; groups of 128 inputs and factors of rows are scaled late
        list(GET word 3 group)
        list(GET word 4 scale)
        set(late 0)
        if(group GREATER_EQUAL 128 OR scale STREQUAL "E4M3")
          set(late 1)
        endif()
        list(REMOVE_AT word 8 2)
        list(JOIN word ", " device)
        string(APPEND device ", ${late}")
      endif()
    endif()
    if(device)
      string(APPEND devices " \\\n    each(${id}, ${device})")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT "${T_OUT}" @ONLY CONTENT
       "/* Written by the build out of kernels/formats/w*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_WEIGHT_FORMATS_H
#define KT_WEIGHT_FORMATS_H

/* How weights are stored. */
typedef enum kt_weight_format {
    KT_W_NONE = 0,
${enum}    KT_W_COUNT
} kt_weight_format;

/* each(ID, name) of every format. */
#define KT_WEIGHT_FORMATS(each)${all}

/* each(ID) of every format whose panels the kernels of blocks in general multiply. */
#define KT_BLOCK_FORMATS(each)${blocks}

/* each(ID, low, high, span, group, scale, minimum, values, offset, grid): panels of blocks
 * (kernels/formats/p64_spec.h). */
#define KT_PANEL_FORMATS(each)${panels}

/* each(ID, low, high, group, scale, minimum, values, offset, is_late): records of devices
 * (kernels/cuda/kt_dev_weights.h). */
#define KT_DEVICE_FORMATS(each)${devices}

#endif
")
endfunction()

# cmake -DFILES=<glob> -DOUT=<file.h> -P formats.cmake
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  kt_weight_formats(OUT "${OUT}" FILES "${FILES}")
endif()
