# cmake -D ROOTS=a;b -D FILES=x/y.h;z.h -D OUTPUT=file.cc -D FUNCTION=ns::name -P EmbedFiles.cmake
#
# Writes a source file that defines FUNCTION to return the files, each looked for under ROOTS, with the names by which
# they are included. Includes "compiled/embedded.h", which declares the type.
set(text "#include \"algorithm/compiled/embedded.h\"\n\n")
string(REGEX REPLACE "::[^:]*$" "" namespace "${FUNCTION}")
string(REGEX REPLACE "^.*::" "" name "${FUNCTION}")
string(APPEND text "namespace ${namespace} {\nnamespace {\n\nconstexpr EmbeddedFile kFiles[] = {\n")
foreach(file ${FILES})
  set(found "")
  foreach(root ${ROOTS})
    if(NOT found AND EXISTS ${root}/${file})
      set(found ${root}/${file})
    endif()
  endforeach()
  if(NOT found)
    message(FATAL_ERROR "${file} is in none of ${ROOTS}")
  endif()
  file(READ ${found} content)
  string(APPEND text "{\"${file}\", R\"=====(${content})=====\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\nstd::span<const EmbeddedFile> ${name}() noexcept { return kFiles; }\n\n}  // namespace ${namespace}\n")
file(WRITE ${OUTPUT} "${text}")
