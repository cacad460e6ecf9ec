#!/bin/sh
# check_isa_symbols.sh NM OBJECT...: no object that was compiled for one instruction set may define a symbol that the
# linker could merge with another file's (weak, common, unique) unless its name says the instruction set. Otherwise a
# plain processor might be given the wide code of, say, an inline function of a shared header.
nm=$1
shift
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
shared=$("$nm" -C --defined-only "$@" | grep -E '^[0-9a-f]+ [WwVvCu] ' | grep -vE 'isa_(base|v3|v4|v4dot)')
if [ -n "$shared" ]; then
  echo "symbols that other files may share:"
  echo "$shared"
  exit 1
fi
