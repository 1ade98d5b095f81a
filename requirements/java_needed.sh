#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Succeeds when this machine has no Java 17 or 21 where the node looks for one (JAVA_HOME, PATH,
# /usr/lib/jvm; penstock.lake.jvm), so that one from PyPI is needed.
for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
    case "$("$java" -version 2>&1 | head -n 1)" in
        *'version "17'* | *'version "21'*) exit 1 ;;
    esac
done
exit 0
