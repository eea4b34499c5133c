// The search takes each word that is typed for the beginning of one: "a" finds "AccessDenied", and
// "I" finds "IAM". So the words that say nothing are left out of a question that has others.
{
  const nothing = new Set(("a am an and are at can did do does for from how i in into is it my of on "
    + "or the to was what when where which why with").split(" "));
  const QUERY = 2;
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...more) {
    if (message?.type === QUERY && typeof message.data === "string") {
      const said = message.data.split(/\s+/).filter((word) => !nothing.has(word.replace(/\W+$/, "").toLowerCase()));
      if (said.join("").length) message = { ...message, data: said.join(" ") };
    }
    return post.call(this, message, ...more);
  };
}
