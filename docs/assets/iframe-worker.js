// A page on the disk may start no worker, in which the theme's search runs: here it runs in a frame.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.body.appendChild(document.createElement("iframe"));
    frame.hidden = true;
    this.inside = frame.contentWindow;
    this.inside.document.write("<body></body>");
    this.inside.document.close();
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.inside.importScripts = (...urls) =>
      urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
    this.loaded = this.load(url);
  }

  load(url) {
    return new Promise((done) => {
      const script = this.inside.document.createElement("script");
      script.src = url;
      script.onload = done;
      this.inside.document.body.appendChild(script);
    });
  }

  postMessage(data) {
    const event = new MessageEvent("message", { data: structuredClone(data) });
    this.loaded.then(() => this.inside.dispatchEvent(event));
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = FrameWorker; // the theme looks for the first name
}
