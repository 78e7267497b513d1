# Runs slug.sh on some titles. The exit code is how many went wrong.
wrong=0
check() {
    got=$(sh ./slug.sh "$1")
    if [ "$got" = "$2" ]; then
        echo "ok     $1"
    else
        echo "WRONG  $1: expected $2, got $got"
        wrong=$((wrong + 1))
    fi
}

check "lodge" "lodge"
check "Hello World" "hello-world"
check "Hello, World!" "hello-world"
check "  one -- two  " "one-two"
exit $wrong
